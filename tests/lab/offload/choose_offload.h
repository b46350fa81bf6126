// Which cache policy an epoch runs: the one that is fastest on recorded routing, at this budget, link and batch.
//
// No forecast pays everywhere: where copies are slow or a batch touches everything, a cache that copies on demand is as
// good or better (tests/bench/offload.md).  So every candidate is run over a workload of the fitting trace, by the
// virtual clock, and the winner is a constant of the epoch: all ranks choose alike.  ExpectedUsePolicy has to stall 2 %
// less than the best baseline, so that it is not taken for an accident of the fitting text.  Ties: the earlier
// candidate. Pure; print it with ToString.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/offload/policies/policy_kind.h"
#include "tests/lab/offload/offload_sim.h"

namespace switchyard {

// A policy that is served, or the same with prefetches where that has none, or without where it has.
struct OffloadVariant {
  offload::OffloadKind kind = offload::OffloadKind::kExpectedUse;
  bool prefetch = true;
  bool served() const { return prefetch == (kind == offload::OffloadKind::kExpectedUse); }
};
inline constexpr OffloadVariant kOffloadVariants[] = {
    {offload::OffloadKind::kExpectedUse, true}, {offload::OffloadKind::kExpectedUse, false},
    {offload::OffloadKind::kLfu, false},        {offload::OffloadKind::kLru, false},
    {offload::OffloadKind::kLfu, true},         {offload::OffloadKind::kLru, true},
    {offload::OffloadKind::kStatic, false}};

// A fresh policy.  popularity [L * E] as in RulePolicy; `history`: what it may learn from beforehand.
// REQUIRES: one of kOffloadVariants.
std::unique_ptr<offload::CachePolicy> MakeOffloadPolicy(OffloadVariant variant, const offload::OffloadShape& shape,
                                                        const offload::CopyCost& cost,
                                                        absl::Span<const int64_t> popularity,
                                                        const OffloadWorkload& history);

struct OffloadChoice {
  OffloadVariant variant;
  struct Tried {
    std::string name;
    double relative_rate = 0;  // on the fitting workload
  };
  std::vector<Tried> tried;  // in the order of kOffloadVariants
  std::string name;          // of the variant
  // "expected_use 0.93: lfu 0.82, ..."
  std::string ToString() const;
};

// REQUIRES: as RunOffload.
OffloadChoice ChooseOffload(const OffloadWorkload& fit, const OffloadRun& run, absl::Span<const int64_t> popularity);

}  // namespace switchyard
