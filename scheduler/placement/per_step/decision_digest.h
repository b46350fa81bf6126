// 64 bits of each input, state and output of a decision.
//
// Ranks decide alike without a message; the hash of the last decision rides in the next gather.  Where two differ, the
// first field that differs is named: an input means that a message or an estimate was wrong, the table that an earlier
// decision was, an output alone that the code is not deterministic.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace switchyard::placement {

// Inputs, then state, then outputs.
enum class DecisionField {
  kConstants,  // mode, shape, costs
  kStep,
  kLayer,
  kNumber,  // how many decisions came before
  kCounts,
  kEstimates,
  kSlots,  // what is where, and in flight
  kSplit,
  kAwaited,
  kDemand,
  kPrefetch,
};
inline constexpr int kNumDecisionFields = 11;

class DecisionDigest {
 public:
  DecisionDigest() = default;
  // Another rank's.
  explicit DecisionDigest(const std::array<uint64_t, kNumDecisionFields>& fields) : fields_(fields) {}
  void Mix(DecisionField field, int64_t value);
  void Mix(DecisionField field, absl::Span<const int64_t> values);
  void Mix(DecisionField field, absl::Span<const int32_t> values);

  // The 64 bits that the gather carries.
  uint64_t hash() const;
  const std::array<uint64_t, kNumDecisionFields>& fields() const { return fields_; }
  bool operator==(const DecisionDigest& other) const = default;

 private:
  std::array<uint64_t, kNumDecisionFields> fields_ = {};
};

// "counts: 0x12ab on rank 0, 0x9f01 on rank 3 (also: split)"; empty if they are equal.
std::string DescribeMismatch(const DecisionDigest& a, int rank_a, const DecisionDigest& b, int rank_b);

}  // namespace switchyard::placement
