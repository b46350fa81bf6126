#include "scheduler/placement/per_step/decision_digest.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/split_mix.h"

namespace switchyard::placement {
namespace {

constexpr std::array<absl::string_view, kNumDecisionFields> kFieldNames = {
    "constants", "step", "layer", "number", "counts", "estimates", "slots", "split", "awaited", "demand", "prefetch"};

uint64_t Stir(uint64_t state, uint64_t value) { return SplitMix(state ^ value); }

template <class Int>
uint64_t StirAll(uint64_t state, absl::Span<const Int> values) {
  state = Stir(state, values.size());
  for (const Int value : values) state = Stir(state, static_cast<uint64_t>(value));
  return state;
}

}  // namespace

void DecisionDigest::Mix(DecisionField field, int64_t value) { Mix(field, absl::MakeConstSpan(&value, 1)); }

void DecisionDigest::Mix(DecisionField field, absl::Span<const int64_t> values) {
  fields_[static_cast<size_t>(field)] = StirAll(fields_[static_cast<size_t>(field)], values);
}

void DecisionDigest::Mix(DecisionField field, absl::Span<const int32_t> values) {
  fields_[static_cast<size_t>(field)] = StirAll(fields_[static_cast<size_t>(field)], values);
}

uint64_t DecisionDigest::hash() const { return StirAll<uint64_t>(0, fields_); }

std::string DescribeMismatch(const DecisionDigest& a, int rank_a, const DecisionDigest& b, int rank_b) {
  std::string first;
  std::vector<absl::string_view> others;
  for (size_t i = 0; i < kFieldNames.size(); ++i) {
    if (a.fields()[i] == b.fields()[i]) continue;
    if (first.empty()) {
      first = absl::StrCat(kFieldNames[i], ": 0x", absl::Hex(a.fields()[i]), " on rank ", rank_a, ", 0x",
                           absl::Hex(b.fields()[i]), " on rank ", rank_b);
    } else {
      others.push_back(kFieldNames[i]);
    }
  }
  return others.empty() ? first : absl::StrCat(first, " (also: ", absl::StrJoin(others, ", "), ")");
}

}  // namespace switchyard::placement
