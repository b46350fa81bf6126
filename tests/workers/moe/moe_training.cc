#include "tests/workers/moe/moe_training.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/moe/late_offload.h"
#include "workers/ops/gemm/backward/transposed_weight.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::test {
namespace {

int64_t BytesOf(const TensorView& view) { return view.NumElements() * DTypeBytes(view.dtype()); }

}  // namespace

MoeTrained::MoeTrained(const MoeTestModel& model, const Stream& stream, const moe::ExpertLayout& layout, int rank)
    : dtype_(model.shape().dtype), residents_(layout.Residents(rank).begin(), layout.Residents(rank).end()) {
  const MoeShape& shape = model.shape();
  const reference::MoeMatrices matrices = model.Matrices();
  weights_.router = Train(stream, matrices.router, shape.num_experts, shape.hidden);
  for (const int32_t expert : residents_) {
    ops::FfnGradients ffn;
    if (expert >= 0) {
      ffn.gate_up = Train(stream, matrices.gate_up[expert], 2 * shape.ffn, shape.hidden);
      ffn.down = Train(stream, matrices.down[expert], shape.hidden, shape.ffn);
    }
    experts_.push_back(ffn);
  }
  weights_.experts = experts_;
  if (shape.shared_ffn == 0) return;
  shared_.gate_up = Train(stream, matrices.shared_gate_up, 2 * shape.shared_ffn, shape.hidden);
  shared_.down = Train(stream, matrices.shared_down, shape.hidden, shape.shared_ffn);
  weights_.shared = &shared_;
  if (shape.shared_gate) weights_.shared_gate = Train(stream, matrices.shared_gate, 1, shape.hidden);
}

ops::TrainedMatrix MoeTrained::Train(const Stream& stream, const std::vector<double>& values, int64_t n, int64_t k) {
  transposed_.emplace_back(ops::WeightDesc{.n = k, .k = n, .dtype = dtype_});
  gradients_.push_back(Tensor::Zeros(AccDType(dtype_), {n, k}));
  const TensorView rows(const_cast<double*>(values.data()), DType::kF64, {n, k});
  SY_CHECK_OK(ops::PackTransposed(stream, rows, &transposed_.back()));
  return {.transposed = &transposed_.back(), .gradient = gradients_.back()};
}

void MoeTrained::AddTo(reference::MoeMatrices* sums) const {
  const auto add = [](const ops::TrainedMatrix& matrix, std::vector<double>* to) {
    if (matrix.transposed == nullptr) return;
    const std::vector<double> values = ValuesOf(matrix.gradient);
    for (size_t i = 0; i < values.size(); ++i) (*to)[i] += values[i];
  };
  add(weights_.router, &sums->router);
  for (size_t s = 0; s < residents_.size(); ++s) {
    if (residents_[s] < 0) continue;
    add(experts_[s].gate_up, &sums->gate_up[residents_[s]]);
    add(experts_[s].down, &sums->down[residents_[s]]);
  }
  add(shared_.gate_up, &sums->shared_gate_up);
  add(shared_.down, &sums->shared_down);
  add(weights_.shared_gate, &sums->shared_gate);
}

namespace {

struct RankIo {
  TensorView x, residual, d_residual, d_x;  // this rank's rows
};

absl::Status TrainRank(const MoeTestModel& model, const MoeTrainingRun& training, comm::Communicator* comm,
                       const RankIo& io, int steps, MoeTrained* trained) {
  ThreadPool pool(training.threads > 0 ? training.threads : 1 + comm->rank() % 2, false);
  const Stream stream = Stream::OnCpu(&pool);
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.micro_batches = training.run.micro_batches,
                                                                        .shared_expert = model.shape().shared_ffn > 0,
                                                                        .dispatch_first = training.dispatch_first,
                                                                        .joint_gradients = training.joint_gradients,
                                                                        .trains = true,
                                                                        .restore = training.restore});
  const moe::MoeLayer layer = model.LayerOf(stream, training.run.layout, comm->rank());
  moe::MoeExecutor executor;
  moe::MoeBackward backward;
  moe::MoeSaved saved;
  moe::MoeStats stats;
  LateOffload offload;
  const moe::MoeContext step = {.stream = &stream,
                                .comm = comm,
                                .layout = &training.run.layout,
                                .schedule = &schedule,
                                .deadline = Soon(),
                                .stats = &stats,
                                .offload = training.restore.offloads() ? &offload : nullptr};
  const moe::LayerContext at = {.saved = &saved};
  for (int i = 0; i < steps; ++i) {
    RETURN_IF_ERROR(executor.Run(step, at, layer, io.x, io.residual));
    // The caller of the backward makes the rows again.
    const Tensor again = *CopyToHost(stream, io.x);
    RETURN_IF_ERROR(backward.Run(step, at, layer, trained->weights(),
                                 {.x = again,
                                  .d_residual = io.d_residual,
                                  .router_loss = {.prob_gradient = training.prob_gradient, .z_scale = training.z_scale},
                                  .d_x = io.d_x}));
  }
  return comm->status();
}

}  // namespace

absl::StatusOr<MoeTrainingResult> TrainMoe(const MoeTestModel& model, const MoeTrainingRun& training,
                                           const TensorView& x, const TensorView& residual,
                                           const TensorView& d_residual, int steps) {
  const int world = training.run.layout.num_ranks();
  const std::vector<int64_t>& rank_rows = training.run.rank_rows;
  SY_CHECK_EQ(std::accumulate(rank_rows.begin(), rank_rows.end(), int64_t{0}), x.dim(0));
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  const Tensor after = *CopyToHost(stream, residual);
  const Tensor d_x(training.d_x_in_acc ? AccDType(x.dtype()) : x.dtype(), x.shape());
  std::deque<MoeTrained> trained;
  for (int rank = 0; rank < world; ++rank) trained.emplace_back(model, stream, training.run.layout, rank);
  auto ranks = MakeGroup(training.run.backend, world);
  if (training.late >= 0) {
    ranks[1] = comm::MakeFaultyCommunicator(std::move(ranks[1]),
                                            {comm::CommFault::Kind::kDelay, training.late, absl::Milliseconds(20)});
  }
  const auto statuses = RunRanks(&ranks, [&](comm::Communicator* comm) {
    const int64_t begin = std::accumulate(rank_rows.begin(), rank_rows.begin() + comm->rank(), int64_t{0});
    const int64_t rows = rank_rows[comm->rank()];
    return TrainRank(model, training, comm,
                     {.x = x.Rows(begin, rows),
                      .residual = after.view().Rows(begin, rows),
                      .d_residual = d_residual.Rows(begin, rows),
                      .d_x = d_x.view().Rows(begin, rows)},
                     steps, &trained[static_cast<size_t>(comm->rank())]);
  });
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  MoeTrainingResult result;
  result.residual.assign(static_cast<const char*>(after.view().raw()), static_cast<size_t>(BytesOf(after)));
  result.d_x.assign(static_cast<const char*>(d_x.view().raw()), static_cast<size_t>(BytesOf(d_x)));
  result.d_x_values = ValuesOf(d_x);
  result.gradients = reference::ZerosLike(model.Matrices());
  for (const MoeTrained& of_rank : trained) of_rank.AddTo(&result.gradients);
  for (const auto& comm : ranks) result.ledgers.push_back(comm->ledger().hash());
  return result;
}

reference::MoeProblem ProblemOf(const MoeTestModel& model, const MoeTrainingRun& training, const TensorView& x,
                                const TensorView& d_residual) {
  return {.hidden = model.shape().hidden,
          .top_k = model.shape().top_k,
          .renormalize = model.shape().renormalize,
          .weights = model.Matrices(),
          .x = ValuesOf(x),
          .dy = ValuesOf(d_residual),
          .prob_gradient = training.prob_gradient,
          .z_scale = training.z_scale};
}

}  // namespace switchyard::test
