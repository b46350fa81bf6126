// Experts that are read where they lie: all of a model's, those of this worker and those of others on the same machine,
// whose memory it maps.  Nothing is copied, so there are no slots; who computes an expert's rows is free in each step.
// On the CPU.  Thread-compatible.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/moe/experts/expert_weight_provider.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/ops/gemm/weight.h"

namespace switchyard::moe {

class ExpertsInPlace : public ExpertWeightProvider {
 public:
  // At first none is there.
  ExpertsInPlace(int num_layers, int num_experts, ExpertForms expert);

  // The expert lies there from now on, packed, 64-byte aligned; null: nowhere.  Nobody writes that memory.
  void SetPlace(const ExpertId& id, const char* memory);

  absl::Status Check(absl::Span<const int32_t> experts) const override;
  // One call of `compute`.
  absl::Status RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                        Compute compute) override;

 private:
  size_t IndexOf(const ExpertId& id) const {
    return static_cast<size_t>(id.layer) * num_experts_ + static_cast<size_t>(id.expert);
  }

  const size_t num_experts_;
  const ExpertForms expert_;
  std::vector<ops::Weight> gate_up_, down_;           // [L * E], empty where the expert is not there
  std::vector<const ops::Weight*> gate_ups_, downs_;  // of a call, by slot
};

}  // namespace switchyard::moe
