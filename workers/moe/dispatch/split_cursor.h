// Iterates over a SplitTable: a rank's rows of a layer in (token, choice) order, each with the device that computes it.
// Borrows the table.  One cursor serves all exchanges of a layer.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/placement/route/split.h"

namespace switchyard::moe {

class SplitCursor {
 public:
  SplitCursor(const placement::SplitTable* table, int source_rank)
      : table_(table), source_rank_(source_rank), taken_(static_cast<size_t>(table->num_experts())) {}

  const placement::SplitTable& table() const { return *table_; }
  // The device of this rank's next row for `expert`; -1: the table has no more rows for it.
  int32_t Next(int expert) {
    int32_t before = taken_[expert]++;
    for (const placement::SplitPiece& piece : table_->Pieces(source_rank_, expert)) {
      if (before < piece.rows) return piece.device;
      before -= piece.rows;
    }
    return -1;
  }

 private:
  const placement::SplitTable* table_;
  int source_rank_;
  std::vector<int32_t> taken_;  // [E]
};

}  // namespace switchyard::moe
