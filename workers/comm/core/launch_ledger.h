// Rolling hash of the collectives that a rank launched: equal on all ranks that launched the same in the same order.
//
// One hash per class (classes are independent, so their interleaving is no agreement), and one over all classes for
// the stream-ordered collectives, which have one order; folded into one on demand.  Thread-compatible.
#pragma once

#include <cstdint>

#include "workers/comm/core/op_key.h"

namespace switchyard::comm {

class LaunchLedger {
 public:
  void Record(const OpKey& key);
  // A stream-ordered one: its place among those of all classes counts, too.
  void RecordInOrder(const OpKey& key);

  uint64_t hash() const;
  int64_t num_launched() const;

 private:
  struct Lane {
    uint64_t hash = 0;
    int64_t count = 0;
  };
  Lane lanes_[kNumCommClasses];
  uint64_t order_hash_ = 0;  // of the stream-ordered ones
};

}  // namespace switchyard::comm
