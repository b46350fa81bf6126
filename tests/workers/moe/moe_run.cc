#include "tests/workers/moe/moe_run.h"

#include <algorithm>
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
  store_options.chunk_bytes = store_options.expert.bytes() / 3;
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
  ASSIGN_OR_RETURN(auto offload, moe::ExpertOffload::Create(std::move(options), std::move(store)));
  RETURN_IF_ERROR(offload->Fill(Soon(), [](int64_t, int64_t) { return true; }));
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
  options.source = [begin = static_cast<const char*>(packed->data()), stride = options.expert.bytes()](
                       int, int expert) { return begin + expert * stride; };
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
                                  .add_outputs = run.add_outputs,
                                  .pace = run.pace,
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
