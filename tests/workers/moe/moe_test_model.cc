#include "tests/workers/moe/moe_test_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/moe/dispatch/device_dispatcher.h"
#include "workers/moe/experts/device_expert_copier.h"
#include "workers/moe/placement/per_step_balancer.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::test {
namespace {

double NextValue(uint32_t* state) {  // in [-1, 1)
  *state = *state * 1664525u + 1013904223u;
  return static_cast<double>(*state >> 8) / (1 << 23) - 1.0;
}

double GetElement(const TensorView& view, int64_t i) {
  return VisitDType(view.dtype(),
                    [&]<class Elem>() { return static_cast<double>(static_cast<Acc<Elem>>(view.data<Elem>()[i])); });
}

void SetElement(const TensorView& view, int64_t i, double value) {
  VisitDType(view.dtype(),
             [&]<class Elem>() { view.data<Elem>()[i] = static_cast<Elem>(static_cast<Acc<Elem>>(value)); });
}

Tensor RandomTensor(DType dtype, int64_t rows, int64_t width, double scale, uint32_t seed) {
  Tensor tensor(dtype, {rows, width});
  uint32_t state = seed * 2654435761u + 12345u;
  for (int64_t i = 0; i < rows * width; ++i) SetElement(tensor, i, scale * NextValue(&state));
  return tensor;
}

}  // namespace

MoeTestModel::MoeTestModel(const MoeShape& shape, uint32_t seed) : shape_(shape), state_(seed) {
  const double in = 1.5 / std::sqrt(static_cast<double>(shape.hidden));
  router_ = RandomMatrix(shape.num_experts, shape.hidden, false, 3 * in);
  for (int e = 0; e < shape.num_experts; ++e) {
    gate_up_.push_back(RandomMatrix(2 * shape.ffn, shape.hidden, true, in));
    down_.push_back(RandomMatrix(shape.hidden, shape.ffn, false, 1.5 / std::sqrt(static_cast<double>(shape.ffn))));
  }
  if (shape.shared_ffn > 0) {
    shared_gate_up_ = RandomMatrix(2 * shape.shared_ffn, shape.hidden, true, in);
    shared_down_ = RandomMatrix(shape.hidden, shape.shared_ffn, false, in);
    shared_gate_ = RandomMatrix(1, shape.hidden, false, in);
  }
}

MoeTestModel::Matrix MoeTestModel::RandomMatrix(int64_t n, int64_t k, bool gated, double scale) {
  Matrix matrix;
  matrix.n = n;
  matrix.k = k;
  matrix.values.resize(n * k);
  for (double& value : matrix.values) value = scale * NextValue(&state_);
  ThreadPool pool(1);
  Pack(Stream::OnCpu(&pool), &matrix, gated);
  return matrix;
}

void MoeTestModel::Pack(const Stream& stream, Matrix* matrix, bool gated) const {
  Tensor rows(shape_.dtype, {matrix->n, matrix->k});
  for (int64_t i = 0; i < matrix->n * matrix->k; ++i) {
    SetElement(rows, i, matrix->values[i]);
    matrix->values[i] = GetElement(rows, i);
  }
  const ops::WeightDesc desc = {.n = matrix->n,
                                .k = matrix->k,
                                .dtype = shape_.dtype,
                                .layout = gated ? ops::WeightLayout::kGatedPanels : ops::WeightLayout::kPanels};
  auto weight = ops::PackWeight(stream, desc, rows);
  SY_CHECK_OK(weight.status());
  matrix->weight = *std::move(weight);
}

std::unique_ptr<MoeTestModel> MoeTestModel::On(const Stream& stream) const {
  auto model = std::make_unique<MoeTestModel>(shape_);
  const auto take = [&](const Matrix& from, Matrix* to, bool gated) {
    if (from.values.empty()) return;
    to->values = from.values;
    model->Pack(stream, to, gated);
  };
  take(router_, &model->router_, false);
  for (int e = 0; e < shape_.num_experts; ++e) {
    take(gate_up_[e], &model->gate_up_[e], true);
    take(down_[e], &model->down_[e], false);
  }
  take(shared_gate_up_, &model->shared_gate_up_, true);
  take(shared_down_, &model->shared_down_, false);
  take(shared_gate_, &model->shared_gate_, false);
  return model;
}

void MoeTestModel::FavourExpert(int expert) {
  // The rows of RandomRows end in a large constant: see there.
  for (int e = 0; e < shape_.num_experts; ++e) router_.values[(e + 1) * shape_.hidden - 1] = e == expert ? 20.0 : 0.0;
  ThreadPool pool(1);
  Pack(Stream::OnCpu(&pool), &router_, false);
}

reference::MoeMatrices MoeTestModel::Matrices() const {
  reference::MoeMatrices matrices = {.router = router_.values,
                                     .gate_up = {},
                                     .down = {},
                                     .shared_gate_up = shared_gate_up_.values,
                                     .shared_down = shared_down_.values,
                                     .shared_gate = shape_.shared_gate ? shared_gate_.values : std::vector<double>()};
  for (const Matrix& matrix : gate_up_) matrices.gate_up.push_back(matrix.values);
  for (const Matrix& matrix : down_) matrices.down.push_back(matrix.values);
  return matrices;
}

void MoeTestModel::SetMatrices(const reference::MoeMatrices& matrices) {
  ThreadPool pool(1);
  const auto set = [&](const std::vector<double>& values, Matrix* matrix, bool gated) {
    if (values.empty()) return;
    matrix->values = values;
    Pack(Stream::OnCpu(&pool), matrix, gated);
  };
  set(matrices.router, &router_, false);
  for (size_t e = 0; e < gate_up_.size(); ++e) {
    set(matrices.gate_up[e], &gate_up_[e], true);
    set(matrices.down[e], &down_[e], false);
  }
  set(matrices.shared_gate_up, &shared_gate_up_, true);
  set(matrices.shared_down, &shared_down_, false);
  set(matrices.shared_gate, &shared_gate_, false);
}

moe::MoeLayer MoeTestModel::LayerOf(const Stream& stream, const moe::ExpertLayout& layout, int rank) const {
  moe::MoeLayer layer;
  layer.desc = {.hidden = shape_.hidden,
                .expert_ffn = shape_.ffn,
                .shared_ffn = shape_.shared_ffn,
                .dtype = shape_.dtype,
                .router = {.top_k = shape_.top_k, .renormalize = shape_.renormalize}};
  layer.weights.router = &router_.weight;
  std::vector<const ops::Weight*> gate_up, down;
  for (const int32_t expert : layout.Residents(rank)) {
    gate_up.push_back(expert < 0 ? nullptr : &gate_up_[expert].weight);
    down.push_back(expert < 0 ? nullptr : &down_[expert].weight);
  }
  layer.weights.gate_up = *ops::WeightTable::Make(stream, std::move(gate_up));
  layer.weights.down = *ops::WeightTable::Make(stream, std::move(down));
  if (shape_.shared_ffn > 0) {
    layer.weights.shared_gate_up = &shared_gate_up_.weight;
    layer.weights.shared_down = &shared_down_.weight;
    if (shape_.shared_gate) layer.weights.shared_gate = &shared_gate_.weight;
  }
  return layer;
}

moe::MoeLayer MoeTestModel::LayerOf(const Stream& stream, moe::ExpertWeightProvider* experts) const {
  moe::MoeLayer layer = LayerOf(stream, moe::ExpertLayout::Contiguous(shape_.num_experts, 1), 0);
  layer.weights.gate_up = ops::WeightTable();
  layer.weights.down = ops::WeightTable();
  layer.weights.experts = experts;
  return layer;
}

moe::MoeLayer MoeTestModel::LayerOf(moe::ExpertWeightProvider* experts) const {
  ThreadPool pool(1, false);
  return LayerOf(Stream::OnCpu(&pool), experts);
}

std::vector<char> MoeTestModel::PackExperts() const {
  ThreadPool pool(1, false);
  return *PackExperts(Stream::OnCpu(&pool));
}

absl::StatusOr<std::vector<char>> MoeTestModel::PackExperts(const Stream& stream) const {
  const moe::PackedExpert form = packed();
  std::vector<char> bytes(static_cast<size_t>(form.bytes * shape_.num_experts));
  const auto fetch = [&](const ops::Weight& weight, char* to) -> absl::Status {
    const TensorView there(const_cast<void*>(weight.data()), DType::kU8, {weight.bytes()}, weight.device());
    ASSIGN_OR_RETURN(const Tensor here, CopyToHost(stream, there));
    std::memcpy(to, here.view().raw(), static_cast<size_t>(here.bytes()));
    return absl::OkStatus();
  };
  for (int e = 0; e < shape_.num_experts; ++e) {
    char* const at = bytes.data() + e * form.bytes;
    RETURN_IF_ERROR(fetch(gate_up_[e].weight, at));
    RETURN_IF_ERROR(fetch(down_[e].weight, at + form.down_offset));
  }
  return bytes;
}

Tensor MoeTestModel::RandomRows(int64_t rows, uint32_t seed) const {
  Tensor x = RandomTensor(shape_.dtype, rows, shape_.hidden, 1.0, seed);
  for (int64_t t = 0; t < rows; ++t) SetElement(x, (t + 1) * shape_.hidden - 1, 1.0);
  return x;
}

Tensor MoeTestModel::RandomResidual(int64_t rows, uint32_t seed) const {
  return RandomTensor(AccDType(shape_.dtype), rows, shape_.hidden, 1.0, seed);
}

std::vector<double> MoeTestModel::NaiveFfn(const Matrix& gate_up, const Matrix& down,
                                           const std::vector<double>& x) const {
  const int64_t ffn = down.k;
  std::vector<double> hidden(ffn), y(down.n, 0.0);
  for (int64_t f = 0; f < ffn; ++f) {
    double gate = 0, up = 0;
    for (int64_t i = 0; i < gate_up.k; ++i) {
      gate += gate_up.values[f * gate_up.k + i] * x[i];
      up += gate_up.values[(ffn + f) * gate_up.k + i] * x[i];
    }
    hidden[f] = gate / (1 + std::exp(-gate)) * up;
  }
  for (int64_t h = 0; h < down.n; ++h) {
    for (int64_t f = 0; f < ffn; ++f) y[h] += down.values[h * ffn + f] * hidden[f];
  }
  return y;
}

std::vector<double> MoeTestModel::Naive(const TensorView& x, const TensorView& residual) const {
  const int64_t hidden = shape_.hidden;
  std::vector<double> out(x.dim(0) * hidden);
  for (int64_t i = 0; i < x.dim(0) * hidden; ++i) out[i] = GetElement(residual, i);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    std::vector<double> row(hidden), score(shape_.num_experts, 0.0);
    for (int64_t h = 0; h < hidden; ++h) row[h] = GetElement(x, t * hidden + h);
    double total = 0;
    for (int e = 0; e < shape_.num_experts; ++e) {
      for (int64_t h = 0; h < hidden; ++h) score[e] += router_.values[e * hidden + h] * row[h];
    }
    const double largest = *std::max_element(score.begin(), score.end());
    for (double& s : score) total += s = std::exp(s - largest);
    std::vector<int> order(shape_.num_experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
    order.resize(shape_.top_k);
    double chosen = 0;
    for (const int e : order) chosen += score[e];
    for (const int e : order) {
      const std::vector<double> y = NaiveFfn(gate_up_[e], down_[e], row);
      const double weight = score[e] / (shape_.renormalize ? chosen : total);
      for (int64_t h = 0; h < hidden; ++h) out[t * hidden + h] += weight * y[h];
    }
    if (shape_.shared_ffn > 0) {
      const std::vector<double> y = NaiveFfn(shared_gate_up_, shared_down_, row);
      double logit = 0;
      for (int64_t h = 0; h < hidden; ++h) logit += shared_gate_.values[h] * row[h];
      const double weight = shape_.shared_gate ? 1 / (1 + std::exp(-logit)) : 1.0;
      for (int64_t h = 0; h < hidden; ++h) out[t * hidden + h] += weight * y[h];
    }
  }
  return out;
}

std::string ExchangeName(ExchangeKind kind) {
  return kind == ExchangeKind::kHost ? "host" : kind == ExchangeKind::kPadded ? "bounded" : "exact";
}

moe::MoeExecutor::DispatcherMaker MakerOf(ExchangeKind kind) {
  if (kind == ExchangeKind::kHost) return &moe::MakeDispatcher;
  return [](Device, moe::ExchangeMode) -> std::unique_ptr<moe::TokenDispatcher> {
    return std::make_unique<moe::DeviceDispatcher>();
  };
}

moe::ExchangeMode ModeOf(ExchangeKind kind) {
  return kind == ExchangeKind::kPadded ? moe::ExchangeMode::kPadded : moe::ExchangeMode::kExact;
}

int64_t MoeRun::max_rows() const { return 2 + *std::max_element(rank_rows.begin(), rank_rows.end()); }

namespace {

absl::StatusOr<std::unique_ptr<moe::ExpertOffload>> MakeOffload(const MoeTestModel& model, const MoeRun& run, int rank,
                                                                Device device, const std::vector<char>& experts) {
  moe::ExpertStoreOptions store_options;
  store_options.expert = model.packed();
  store_options.num_slots = run.expert_slots;
  store_options.chunk_bytes = store_options.expert.bytes / 3;
  store_options.device = device;
  store_options.source = [&](const moe::ExpertId& id) { return experts.data() + id.expert * model.packed().bytes; };
  std::unique_ptr<moe::ExpertCopier> copier;
  ASSIGN_OR_RETURN(
      copier, moe::MakeExpertCopier(device, {.begin = experts.data(), .bytes = static_cast<int64_t>(experts.size())}));
  if (run.copies != nullptr) copier = std::make_unique<FakeCopier>(run.copies, std::move(copier));
  ASSIGN_OR_RETURN(std::unique_ptr<moe::ExpertStore> store, moe::ExpertStore::Create(store_options, std::move(copier)));
  moe::ExpertOffloadOptions options;
  options.num_layers = 1;
  options.experts.assign(run.layout.Residents(rank).begin(), run.layout.Residents(rank).end());
  options.make_policy = [&run](const offload::OffloadShape& shape, absl::Span<const int64_t>) {
    return run.policy(shape);
  };
  const std::vector<moe::ExpertHosting> here(options.experts.size(), moe::ExpertHosting::kHere);
  ASSIGN_OR_RETURN(auto offload, moe::ExpertOffload::Create(std::move(options), std::move(store)));
  RETURN_IF_ERROR(offload->Fill(here, Soon(), [](int64_t, int64_t) { return true; }));
  return offload;
}

// packed: becomes what the host computes from, and stays.
absl::StatusOr<std::unique_ptr<moe::ColdExperts>> MakeCold(const MoeTestModel& model, const MoeRun& run,
                                                           const Stream& stream, moe::ExpertOffload* offload,
                                                           Buffer* packed) {
  const auto host_model = model.On(Stream::OnCpu(&stream.pool()));
  const std::vector<char> bytes = host_model->PackExperts();
  ASSIGN_OR_RETURN(*packed, Buffer::Allocate(static_cast<int64_t>(bytes.size()), Device::Cpu()));  // aligned
  std::memcpy(packed->data(), bytes.data(), bytes.size());
  moe::ColdExpertsOptions options;
  options.expert = host_model->packed();
  options.device = stream.device();
  options.source = [begin = static_cast<const char*>(packed->data()), stride = options.expert.bytes](int, int expert) {
    return begin + expert * stride;
  };
  options.copy_seconds = [price = run.cold_price] { return price; };
  options.host_seconds = [](int64_t) { return 1.0; };
  return moe::ColdExperts::Create(std::move(options), offload);
}

// Splits rows over the replicas that the layout has.
absl::StatusOr<std::unique_ptr<moe::PerStepBalancer>> SplittingBalancer(const moe::ExpertLayout& layout, int rank) {
  placement::Placement placement{.num_experts = layout.num_experts(), .slots = {}};
  for (int r = 0; r < layout.num_ranks(); ++r) {
    placement.slots.emplace_back(layout.Residents(r).begin(), layout.Residents(r).end());
  }
  moe::PerStepBalancerOptions options;
  options.shape.mode = placement::PlacementMode::kStaticSpare;
  options.shape.residents = {placement};
  options.rank = rank;
  return moe::PerStepBalancer::Create(std::move(options));
}

}  // namespace

absl::Status RunMoeRank(const MoeTestModel& model, const MoeRun& run, comm::Communicator* comm, const Stream& stream,
                        const TensorView& x, int repeats, MoeResult* result) {
  const int rank = comm->rank();
  const int64_t begin = std::accumulate(run.rank_rows.begin(), run.rank_rows.begin() + rank, int64_t{0});
  const int64_t rows = run.rank_rows[rank], experts = model.shape().num_experts;
  const DType acc = AccDType(model.shape().dtype);
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel(
      {.micro_batches = run.micro_batches, .shared_expert = model.shape().shared_ffn > 0});
  std::vector<char> packed;
  std::unique_ptr<moe::ExpertOffload> offload;
  if (run.expert_slots > 0) {
    ASSIGN_OR_RETURN(packed, model.PackExperts(stream));
    ASSIGN_OR_RETURN(offload, MakeOffload(model, run, rank, stream.device(), packed));
  }
  moe::ExpertWeightProvider* offloaded = offload.get();
  Buffer packed_for_host;
  std::unique_ptr<moe::ColdExperts> cold;
  if (run.cold_price >= 0) {
    ASSIGN_OR_RETURN(cold, MakeCold(model, run, stream, offload.get(), &packed_for_host));
    offloaded = cold.get();
  }
  const moe::MoeLayer layer =
      offloaded == nullptr ? model.LayerOf(stream, run.layout, rank) : model.LayerOf(stream, offloaded);
  moe::MoeExecutor executor(MakerOf(run.exchange));
  std::unique_ptr<moe::PerStepBalancer> balancer;
  if (run.balanced) {
    ASSIGN_OR_RETURN(balancer, SplittingBalancer(run.layout, rank));
  }
  const TensorView host_residual(
      result->residual.data() + static_cast<size_t>(begin * model.shape().hidden * DTypeBytes(acc)), acc,
      {rows, model.shape().hidden});
  ASSIGN_OR_RETURN(const Tensor mine, CopyToDevice(stream, x.Rows(begin, rows)));
  ASSIGN_OR_RETURN(const Tensor residual, CopyToDevice(stream, host_residual));
  ASSIGN_OR_RETURN(const Tensor counts, CopyToDevice(stream, Tensor::Zeros(DType::kI32, {repeats, experts})));
  for (int i = 0; i < repeats; ++i) {
    RETURN_IF_ERROR(executor.Run({.stream = &stream,
                                  .comm = comm,
                                  .layout = &run.layout,
                                  .schedule = &schedule,
                                  .deadline = Soon(),
                                  .stats = &result->stats[rank],
                                  .balancer = balancer.get(),
                                  .exchange = ModeOf(run.exchange),
                                  .max_rows = run.max_rows()},
                                 {.expert_counts = counts.view().Rows(i, 1).Reshape({experts})}, layer, mine,
                                 residual));
  }
  if (offload != nullptr) {
    result->copies[rank] = offload->store().counters();
    result->waves[rank] = offload->waves();
  }
  if (cold != nullptr) result->cold[rank] = cold->counters();
  ASSIGN_OR_RETURN(const Tensor after, CopyToHost(stream, residual));
  ASSIGN_OR_RETURN(const Tensor counted, CopyToHost(stream, counts));
  if (after.bytes() > 0) std::memcpy(host_residual.raw(), after.view().raw(), static_cast<size_t>(after.bytes()));
  result->expert_counts[rank].assign(counted.data<int32_t>(), counted.data<int32_t>() + repeats * experts);
  return comm->status();
}

absl::StatusOr<MoeResult> RunMoe(const MoeTestModel& model, const MoeRun& run, const TensorView& x,
                                 const TensorView& residual, int repeats) {
  const int world = run.layout.num_ranks();
  SY_CHECK_EQ(world, static_cast<int>(run.rank_rows.size()));
  SY_CHECK_EQ(std::accumulate(run.rank_rows.begin(), run.rank_rows.end(), int64_t{0}), x.dim(0));
  MoeResult result;
  result.residual.assign(static_cast<const char*>(residual.raw()),
                         static_cast<size_t>(residual.NumElements() * DTypeBytes(residual.dtype())));
  result.stats.resize(world);
  result.copies.resize(world);
  result.waves.resize(world);
  result.cold.resize(world);
  result.expert_counts.resize(world);
  auto ranks = MakeGroup(run.backend, world);
  const auto statuses = RunRanks(&ranks, [&](comm::Communicator* comm) {
    ThreadPool pool(1 + comm->rank() % 2, false);
    return RunMoeRank(model, run, comm, Stream::OnCpu(&pool), x, repeats, &result);
  });
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  for (const auto& comm : ranks) result.ledgers.push_back(comm->ledger().hash());
  return result;
}

}  // namespace switchyard::test
