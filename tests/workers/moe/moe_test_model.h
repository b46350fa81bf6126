// A small MoE layer with random weights, the same on every rank, and ways to run it: on any number of ranks, and
// naively in double precision.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/reference/moe_backward.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/moe/fake_copier.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/experts/cold_experts.h"
#include "workers/moe/experts/expert_offload.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/tensor.h"

namespace switchyard::test {

struct MoeShape {
  int64_t hidden = 64;
  int64_t ffn = 48;
  int num_experts = 8;
  int top_k = 2;
  int64_t shared_ffn = 0;
  bool shared_gate = true;
  bool renormalize = true;
  DType dtype = DType::kF32;
};

class MoeTestModel {
 public:
  explicit MoeTestModel(const MoeShape& shape, uint32_t seed = 1);

  // The same model with its weights on the stream's device.
  std::unique_ptr<MoeTestModel> On(const Stream& stream) const;
  // The layer as rank `rank` of the layout holds it.  stream: of the device that the weights are on.
  moe::MoeLayer LayerOf(const Stream& stream, const moe::ExpertLayout& layout, int rank) const;
  // The same without weights of experts, which `experts` has.
  moe::MoeLayer LayerOf(const Stream& stream, moe::ExpertWeightProvider* experts) const;
  moe::MoeLayer LayerOf(moe::ExpertWeightProvider* experts) const;  // of a model on the CPU
  moe::PackedExpert packed() const { return {shape_.hidden, shape_.ffn, shape_.dtype, router_.weight.device().kind}; }
  // All experts in that form, one after the other, on the host.  stream: as LayerOf's.
  absl::StatusOr<std::vector<char>> PackExperts(const Stream& stream) const;
  std::vector<char> PackExperts() const;  // of a model on the CPU
  const MoeShape& shape() const { return shape_; }
  // [rows, H] in the model's dtype, and a residual stream to add to.
  Tensor RandomRows(int64_t rows, uint32_t seed) const;
  Tensor RandomResidual(int64_t rows, uint32_t seed) const;
  // Returns its matrices as rounded to the dtype; SetMatrices rounds others and puts them in their place.
  reference::MoeMatrices Matrices() const;
  void SetMatrices(const reference::MoeMatrices& matrices);
  // Makes every row choose `expert` first, by far.
  void FavourExpert(int expert);

  // The layer in double precision, one token after the other, straight from the definition.
  std::vector<double> Naive(const TensorView& x, const TensorView& residual) const;

 private:
  struct Matrix {
    int64_t n = 0, k = 0;
    std::vector<double> values;  // as rounded to the dtype
    ops::Weight weight;
  };
  Matrix RandomMatrix(int64_t n, int64_t k, bool gated, double scale);
  void Pack(const Stream& stream, Matrix* matrix, bool gated) const;
  std::vector<double> NaiveFfn(const Matrix& gate_up, const Matrix& down, const std::vector<double>& x) const;

  const MoeShape shape_;
  uint32_t state_;
  Matrix router_;
  std::vector<Matrix> gate_up_, down_;  // [E]
  Matrix shared_gate_up_, shared_down_, shared_gate_;
};

// The kind of dispatcher that moves the rows.
enum class ExchangeKind { kHost, kDeviceExact, kPadded };
inline constexpr ExchangeKind kExchangeKinds[] = {ExchangeKind::kHost, ExchangeKind::kDeviceExact,
                                                  ExchangeKind::kPadded};
std::string ExchangeName(ExchangeKind kind);
// Makes dispatchers of this kind for an executor.
moe::MoeExecutor::DispatcherMaker MakerOf(ExchangeKind kind);
moe::ExchangeMode ModeOf(ExchangeKind kind);

struct MoeRun {
  Backend backend = Backend::kLocal;
  moe::ExpertLayout layout;        // its ranks are the run's
  std::vector<int64_t> rank_rows;  // [R] how the rows are shared out, in order
  int micro_batches = 1;
  ExchangeKind exchange = ExchangeKind::kHost;
  bool balanced = false;  // a load balancer splits the rows over the replicas, by counts
  int expert_slots = 0;   // > 0: of each rank's expert store; 0 = all experts are resident
  std::function<std::unique_ptr<offload::CachePolicy>(const offload::OffloadShape&)> policy = nullptr;  // of that store
  CopyScript* copies = nullptr;  // null: plain ones
  double cold_price = -1;    // >= 0: experts in no slot may run on the host, where each is said to cost 1, a copy this
  int64_t max_rows() const;  // a little more than any rank has, so that bounds are never the counts
};

struct MoeResult {
  std::string residual;                             // bytes of [T, H] in the order of the rows
  std::vector<moe::MoeStats> stats;                 // [R]
  std::vector<uint64_t> ledgers;                    // [R]
  std::vector<moe::ExpertStoreCounters> copies;     // [R] of the stores
  std::vector<int64_t> waves;                       // [R]
  std::vector<moe::ColdCounters> cold;              // [R]
  std::vector<std::vector<int64_t>> expert_counts;  // [R][repeats * E] choices of the rank's rows
};

// One rank's part of RunMoe, on the stream's device; result->residual and ->stats have all ranks' places.
absl::Status RunMoeRank(const MoeTestModel& model, const MoeRun& run, comm::Communicator* comm, const Stream& stream,
                        const TensorView& x, int repeats, MoeResult* result);

// Runs the layer `repeats` times over the same rows (the residual goes on) on as many threads as ranks.
absl::StatusOr<MoeResult> RunMoe(const MoeTestModel& model, const MoeRun& run, const TensorView& x,
                                 const TensorView& residual, int repeats = 1);

}  // namespace switchyard::test
