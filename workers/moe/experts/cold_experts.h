// Computes an expert budget's cold experts on the host: rows of experts in no slot go to the CPU, which has weights in
// its form, and their outputs come back; the others' waves run meanwhile.
//
// Computes the experts whose rows take the host less time than their copy, until this has cost as much lately as the
// copy (scheduler/offload/cold_choice.h).  Both are measured, so bits depend on slots and on time: a CPU rounds
// otherwise than a device, and with weights of few bits its products have inputs of 8 bits.  Each rank decides for
// itself.  The cache policy does not learn of these rows, so it copies nothing.
//
// Allocates all memory when it is made: at most kMostRows rows of a layer are computed here.  Thread-compatible; the
// host computes on the pool of the step's thread.  Does not do: several ranks of a machine that share its cores and
// memory rate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/offload/cold_choice.h"
#include "workers/moe/experts/expert_offload.h"
#include "workers/moe/experts/expert_weight_provider.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/ops/activation/activation.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct ColdExpertsOptions {
  ExpertForms expert;                                        // for the CPU
  Device device = Device::Cuda(0);                           // of the slots
  std::function<const char*(int layer, int expert)> source;  // an expert's bytes in that form, which must stay
  std::function<double()> copy_seconds;                      // of a copy to a slot, as measured
  std::function<double(int64_t rows)> host_seconds;          // of so many rows of an expert, before measurements
  ops::GluClamp clamp = {};                                  // of their SwiGLU
};

// Since it was made.
struct ColdCounters {
  int64_t experts = 0;  // of all layers
  int64_t rows = 0;
  double seconds = 0;  // that the host computed
};

class ColdExperts : public ExpertWeightProvider {
 public:
  static constexpr int64_t kMostRows = 512;

  // offload: owns the slots; borrowed.  ResourceExhausted: device or pinned memory.
  static absl::StatusOr<std::unique_ptr<ColdExperts>> Create(ColdExpertsOptions options, ExpertOffload* offload);

  absl::Status Check(absl::Span<const int32_t> experts) const override { return offload_->Check(experts); }
  absl::Status BeginPass(absl::Span<const placement::LayerEstimate> estimates) override {
    return offload_->BeginPass(estimates);
  }
  // As ExpertOffload's.  REQUIRES: rows.x and rows.y are set.
  absl::Status RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                        Compute compute) override;

  const ColdCounters& counters() const { return counters_; }

 private:
  ColdExperts(ColdExpertsOptions options, ExpertOffload* offload);
  // Fills cold_ and elsewhere_.
  void Choose(int layer, const ExpertRows& rows);
  // Enqueues the copy of the cold experts' rows to the host.
  absl::Status StartFetch(const Stream& stream, const ExpertRows& rows);
  absl::Status ComputeOnHost(const Stream& stream, int layer);
  absl::Status SendBack(const Stream& stream, const ExpertRows& rows);
  double HostSeconds(int64_t rows) const { return slowness_ * options_.host_seconds(rows); }
  TensorView HostRows(char* memory, int64_t rows, int64_t width) const {
    return TensorView(memory, hidden_.dtype(), {rows, width});
  }

  // A cold expert of the layer, and its rows.
  struct Cold {
    int32_t expert = 0;
    int32_t begin = 0, count = 0;
  };

  const ColdExpertsOptions options_;
  ExpertOffload* const offload_;
  offload::ColdChoice choice_;
  Tensor gathered_;      // [kMostRows, H] on the device
  PinnedBuffer x_, y_;   // [kMostRows, H]
  Tensor hidden_;        // [kMostRows, F]
  double slowness_ = 1;  // of the host, measured over expected
  ColdCounters counters_;
  // The state of the present layer.
  std::vector<Cold> cold_;
  std::vector<uint8_t> elsewhere_;    // [slots]
  int64_t rows_ = 0;                  // of cold_
  std::vector<ops::Weight> weights_;  // gate_up and down of each
  std::vector<const ops::Weight*> gate_up_, down_;
  std::vector<int32_t> offsets_;
};

}  // namespace switchyard::moe
