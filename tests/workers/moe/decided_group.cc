#include "tests/workers/moe/decided_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/moe/popularity/layer_load_predictor.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::test {
namespace {

constexpr int kLayers = kPlacedLayers, kExperts = kReplicatedExperts, kTopK = kPlacedTopK;
constexpr int64_t kRows = kPlacedRows;

// Passes all on, each launch late by something random; may change a bit of what one gather brings.
class UnsteadyCommunicator : public comm::Communicator {
 public:
  UnsteadyCommunicator(Communicator* inner, const CommFaults& faults)
      : Communicator(inner->group(), comm::MessagePool::Create()),
        inner_(inner),
        faults_(faults),
        random_(inner->rank()) {}

  int64_t num_gathers = 0;

  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  comm::WorkOr StartExchange(Exchange exchange) override {
    if (faults_.delays) absl::SleepFor(absl::Microseconds(random_() % 200));
    const bool corrupt = exchange.key.op == comm::CommOp::kAllGather && num_gathers++ == faults_.corrupt_gather;
    ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work, inner_->StartExchange(std::move(exchange)));
    if (!corrupt) return work;
    return std::make_unique<CorruptWork>(std::move(work), faults_.corrupt_byte);
  }

 private:
  class CorruptWork : public comm::Work {
   public:
    CorruptWork(std::unique_ptr<Work> inner, int64_t byte) : inner_(std::move(inner)), byte_(byte) {}
    absl::Status Wait() override {
      RETURN_IF_ERROR(inner_->Wait());
      received_ = std::move(inner_->received());
      received_[0].payload()[byte_] ^= 1;
      return absl::OkStatus();
    }

   private:
    const std::unique_ptr<Work> inner_;
    const int64_t byte_;
  };

  Communicator* const inner_;
  const CommFaults faults_;
  std::mt19937 random_;
};

// Says of the next layer what this one's rows chose, with some of it moved elsewhere.
class FakeLoadPredictor : public moe::LayerLoadPredictor {
 public:
  absl::StatusOr<absl::Span<const placement::LayerEstimate>> Begin(const moe::ForecastPass&) override {
    return absl::Span<const placement::LayerEstimate>();
  }
  absl::StatusOr<absl::Span<const placement::LayerEstimate>> OnGate(const moe::MoeContext&,
                                                                    const moe::LayerContext& layer) override {
    popularity_.assign(kExperts, 0);
    const int32_t* const idx = layer.topk_on_host.empty() ? nullptr : layer.topk_on_host.data<int32_t>();
    for (int64_t i = 0; i < layer.topk_on_host.NumElements(); ++i) {
      popularity_[random_() % 4 == 0 ? random_() % kExperts : static_cast<size_t>(idx[i])] += popularity::kRow;
    }
    reported_ = {{(layer.index + 1) % kLayers, popularity_}};
    return absl::MakeConstSpan(reported_);
  }

 private:
  std::mt19937 random_{7};
  popularity::Popularity popularity_;
  std::vector<placement::LayerEstimate> reported_;
};

placement::LayerCosts CheapCopies() { return {.copy_ps = 1, .row_ps = 1000}; }

}  // namespace

DecidedGroup::DecidedGroup(DType dtype) {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    models_.push_back(std::make_unique<MoeTestModel>(
        MoeShape{.num_experts = kExperts, .top_k = kTopK, .shared_ffn = 16, .dtype = dtype}, layer + 1));
    if (layer == 1) models_.back()->FavourExpert(7);
    packed_.push_back(models_.back()->PackExperts());
  }
}

GroupResult DecidedGroup::Run(const GroupRun& run) const {
  const auto world = static_cast<int>(run.rank_rows.size());
  GroupResult result;
  const Tensor residual = models_[0]->RandomResidual(kRows, 99);
  result.residual.assign(static_cast<const char*>(residual.view().raw()), static_cast<size_t>(residual.bytes()));
  result.stats.resize(world);
  result.counters.resize(world);
  result.gathers.resize(world);
  result.placements.resize(world);
  result.origins.resize(world);
  auto ranks = MakeGroup(run.backend, world);
  result.statuses = RunRanks(&ranks, [&](comm::Communicator* comm) {
    CommFaults faults = {.delays = run.delays};
    if (comm->rank() == world - 1 && run.faults.corrupt_gather >= 0) faults = run.faults;
    UnsteadyCommunicator unsteady(comm, faults);
    const absl::Status status = RunRank(run, &unsteady, &result);
    result.gathers[static_cast<size_t>(comm->rank())] = unsteady.num_gathers;
    return status;
  });
  return result;
}

std::string DecidedGroup::Expected() const {
  GroupRun alone;
  alone.mode = placement::PlacementMode::kStatic;
  const GroupResult result = Run(alone);
  EXPECT_TRUE(result.statuses[0].ok()) << result.statuses[0];
  return result.residual;
}

absl::StatusOr<std::unique_ptr<moe::ReplicatedExperts>> DecidedGroup::MakeSlots(int num_slots,
                                                                                CopyScript* copies) const {
  moe::ReplicatedExpertsOptions options;
  options.num_layers = kLayers;
  options.num_experts = kExperts;
  options.num_slots = num_slots;
  options.expert = models_[0]->packed();
  options.chunk_bytes = options.expert.bytes() / 4;
  options.source = [this](int layer, int id) { return Packed(layer, id); };
  return moe::ReplicatedExperts::Create(options, std::make_unique<FakeCopier>(copies));
}

absl::StatusOr<std::unique_ptr<moe::PerStepBalancer>> DecidedGroup::MakeBalancer(const GroupRun& run, int rank,
                                                                                 moe::ReplicatedExperts* slots) const {
  const int world = static_cast<int>(run.rank_rows.size());
  const int spare = run.mode == placement::PlacementMode::kStatic ? 0 : kSpareSlots;
  moe::PerStepBalancerOptions options;
  options.shape = {
      .mode = run.mode,
      .top_k = kTopK,
      .residents = std::vector<placement::Placement>(kLayers, placement::ContiguousPlacement(kExperts, world, spare))};
  options.rank = rank;
  options.experts = slots;
  ASSIGN_OR_RETURN(auto balancer, moe::PerStepBalancer::Create(std::move(options)));
  RETURN_IF_ERROR(slots->Fill(balancer->ExpertsHere(), Soon(), [](int64_t, int64_t) { return true; }));
  return balancer;
}

absl::Status DecidedGroup::RunRank(const GroupRun& run, comm::Communicator* comm, GroupResult* result) const {
  const int rank = comm->rank(), world = comm->world();
  const auto place = static_cast<size_t>(rank);
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  CopyScript copies;
  if (run.delays) copies.Delay(static_cast<uint32_t>(rank), absl::Microseconds(400));
  const int spare = run.mode == placement::PlacementMode::kStatic ? 0 : kSpareSlots;
  ASSIGN_OR_RETURN(auto slots, MakeSlots(kLayers * ((kExperts + world - 1) / world + spare), &copies));
  ASSIGN_OR_RETURN(auto balancer, MakeBalancer(run, rank, slots.get()));
  const int64_t begin = std::accumulate(run.rank_rows.begin(), run.rank_rows.begin() + rank, int64_t{0});
  const int64_t rows = run.rank_rows[place], width = models_[0]->shape().hidden;
  const DType acc = AccDType(models_[0]->shape().dtype);
  const TensorView residual(result->residual.data() + begin * width * DTypeBytes(acc), acc, {rows, width});
  const moe::ExpertLayout layout = moe::ExpertLayout::Contiguous(kExperts, world);
  const pipeline::MoeSchedule schedule =
      pipeline::BuildExpertParallel({.micro_batches = run.micro_batches, .shared_expert = true});
  moe::MoeExecutor executor;
  FakeLoadPredictor load_predictor;
  for (int64_t step = 1; step <= kPlacedSteps; ++step) {
    const bool decides = !run.every_other_step || step % 2 == 1;
    RETURN_IF_ERROR(balancer->BeginStep({.step = step, .decides = decides, .costs = CheapCopies()}));
    for (int layer = 0; layer < kLayers; ++layer) {
      const Tensor x = models_[0]->RandomRows(kRows, static_cast<uint32_t>(step * kLayers + layer));
      RETURN_IF_ERROR(executor.Run({.stream = &stream,
                                    .comm = comm,
                                    .layout = &layout,
                                    .schedule = &schedule,
                                    .deadline = Soon(),
                                    .stats = &result->stats[place],
                                    .balancer = balancer.get(),
                                    .load_predictor = run.forecasts ? &load_predictor : nullptr},
                                   {.index = layer}, models_[static_cast<size_t>(layer)]->LayerOf(slots.get()),
                                   x.view().Rows(begin, rows), residual));
    }
  }
  result->counters[place] = slots->counters();
  for (int layer = 0; layer < kLayers; ++layer) {
    const placement::Placement& placement = result->placements[place].emplace_back(balancer->placement(layer));
    for (int expert = 0; expert < kExperts; ++expert) {
      for (const int32_t device : placement.DevicesOf(expert)) {
        ++result->origins[place][static_cast<size_t>(balancer->OriginOf(layer, device, expert))];
      }
    }
  }
  return comm->status();
}

std::vector<int64_t> RowsOf(int world) {
  if (world == 1) return {kRows};
  if (world == 2) return {17, 7};
  return world == 3 ? std::vector<int64_t>{0, 20, 4} : std::vector<int64_t>{9, 0, 11, 4};
}

}  // namespace switchyard::test
