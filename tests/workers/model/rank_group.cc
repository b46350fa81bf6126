#include "tests/workers/model/rank_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/batching/row_transfers.h"
#include "scheduler/offload/policies/expected_use_policy.h"
#include "scheduler/offload/policies/lru_policy.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/greedy_planner.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/runner/batch_upload.h"
#include "workers/model/runner/token_rebalancer.h"
#include "workers/model/runner/warm_up.h"
#include "workers/model/weights/loader.h"
#include "workers/model/weights/served_adapters.h"
#include "workers/moe/experts/device_expert_copier.h"
#include "workers/tensor/copy.h"

namespace switchyard::model {
namespace {

constexpr absl::Duration kStepDeadline = absl::Seconds(60);

moe::ExpertForms PackedOf(const ModelConfig& config, const RankGroupOptions& options) {
  return ExpertFormsOf(config, {options.dtype, options.formats}, TestDevice().kind);
}

// A batch of one sequence in a device's memory.
struct SentBatch {
  IntUpload numbers;
  BatchUpload batch;
};

void SendBatch(const Stream& stream, const ops::KvCacheView& cache, Batch* batch, SentBatch* sent) {
  const ops::SequenceLimits limits = {.sequences = 1, .rows = kMaxGroupTokens, .blocks = kMaxGroupTokens};
  auto numbers = IntUpload::Create(stream.device(), BatchUpload::CountsOf(limits));
  auto created = BatchUpload::Create(stream.device(), limits);
  SY_CHECK_OK(numbers.status());
  SY_CHECK_OK(created.status());
  sent->numbers = *std::move(numbers);
  sent->batch = *std::move(created);
  SY_CHECK_OK(sent->numbers.Begin(stream));
  SY_CHECK_OK(sent->batch.Send(stream, &sent->numbers, cache, batch));
}

void AddAdapter(const std::string& folder, const ModelConfig& config, DType dtype, ModelWeights* weights) {
  const auto adapter = checkpoint::LoraAdapter::Open(folder);
  SY_CHECK_OK(adapter.status());
  SY_CHECK_OK(CheckServedAdapter(config, dtype, **adapter));
  auto layers = PackServedAdapter(config, dtype, **adapter);
  SY_CHECK_OK(layers.status());
  weights->adapters.resize(layers->size());
  for (size_t i = 0; i < layers->size(); ++i) weights->adapters[i].push_back(std::move((*layers)[i]));
}

}  // namespace

struct RankGroup::Rank {
  Rank(const RankGroupOptions& options, int number, comm::Communicator* communicator)
      : rank(number),
        comm(communicator),
        stream(options.threads, options.only == nullptr ? number : 0, {.deterministic = options.deterministic}) {}

  const int rank;
  comm::Communicator* const comm;
  TestStream stream;
  std::unique_ptr<moe::ExpertOffload> offload;
  std::unique_ptr<moe::ReplicatedExperts> experts;  // of a placement
  std::unique_ptr<moe::PerStepBalancer> balancer;
  std::unique_ptr<moe::LayerLoadPredictor> load_predictor;
  std::unique_ptr<Model> model;
  std::unique_ptr<ModelRunner> runner;
};

RankGroup::RankGroup(const std::string& dir, const RankGroupOptions& options) : options_(options) {
  absl::StatusOr<ModelConfig> config = ReadModelConfig(dir);
  SY_CHECK_OK(config.status());
  if (options.edit) options.edit(&*config);
  absl::StatusOr<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::Open(dir);
  SY_CHECK_OK(checkpoint.status());
  layout_ = moe::ExpertLayout::Contiguous(static_cast<int>(config->num_experts), options.world);
  TestDevice();  // makes it known
  if (offloaded()) LoadPacked(*checkpoint, *config);
  if (options.only != nullptr) {
    SY_CHECK_EQ(options.only->world(), options.world);
    AddRank(*checkpoint, *config, options.only->rank(), options.only);
    return;
  }
  comms_ = MakeTestGroup(options.world);
  for (int r = 0; r < options.world; ++r) AddRank(*checkpoint, *config, r, comms_[r].get());
}

void RankGroup::LoadPacked(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config) {
  const int64_t bytes = config.num_moe_layers() * config.num_experts * PackedOf(config, options_).bytes();
  absl::StatusOr<Buffer> memory = Buffer::Allocate(bytes, Device::Cpu());
  SY_CHECK_OK(memory.status());
  packed_ = *std::move(memory);
  std::memset(packed_.data(), 0, static_cast<size_t>(bytes));
  LoadOptions load;
  load.dtype = options_.dtype;
  load.format = options_.formats;
  load.device = TestDevice();
  load.residents.resize(static_cast<size_t>(config.num_experts));
  std::iota(load.residents.begin(), load.residents.end(), 0);
  SY_CHECK_OK(LoadExperts(checkpoint, config, std::move(load), [&](int layer, int32_t expert) {
    return const_cast<char*>(PackedSource(config)(layer, expert));
  }));
}

std::function<const char*(int layer, int expert)> RankGroup::PackedSource(const ModelConfig& config) const {
  return [begin = static_cast<const char*>(packed_.data()), num_experts = config.num_experts,
          bytes = PackedOf(config, options_).bytes()](int layer, int expert) {
    return begin + (int64_t{layer} * num_experts + expert) * bytes;
  };
}

void RankGroup::MakeOffload(const ModelConfig& config, Rank* rank) const {
  const Device device = rank->stream.get().device();
  moe::ExpertStoreOptions store_options;
  store_options.expert = PackedOf(config, options_);
  store_options.num_slots = options_.expert_slots;
  store_options.device = device;
  store_options.chunk_bytes = store_options.expert.bytes() / 3;
  store_options.source = [at = PackedSource(config)](const moe::ExpertId& id) { return at(id.layer, id.expert); };
  auto copier = moe::MakeExpertCopier(device, {static_cast<const char*>(packed_.data()), packed_.bytes()});
  SY_CHECK_OK(copier.status());
  auto store = moe::ExpertStore::Create(store_options, *std::move(copier));
  SY_CHECK_OK(store.status());
  moe::ExpertOffloadOptions options;
  options.num_layers = static_cast<int>(config.num_moe_layers());
  const auto residents = layout_.Residents(rank->rank);
  options.experts.assign(residents.begin(), residents.end());
  if (options_.expert_prefetch) options.expert_ticks = options.first_gate_ticks = 1000;
  options.make_policy = [this](const offload::OffloadShape& shape,
                               absl::Span<const int64_t> popularity) -> std::unique_ptr<offload::CachePolicy> {
    if (!options_.expert_prefetch) return std::make_unique<offload::LruPolicy>(shape, true, popularity);
    return std::make_unique<offload::ExpectedUsePolicy>(shape, offload::CopyCost{.copy_ticks = 8, .chunks_per_copy = 4},
                                                        offload::ExpectedUsePolicy::Options{}, popularity);
  };
  auto offload = moe::ExpertOffload::Create(std::move(options), *std::move(store));
  SY_CHECK_OK(offload.status());
  rank->offload = *std::move(offload);
  SY_CHECK_OK(rank->offload->Fill(absl::Now() + kStepDeadline, [](int64_t, int64_t) { return true; }));
}

void RankGroup::MakeReplicatedExperts(const ModelConfig& config, Rank* rank) const {
  const auto layers = static_cast<int>(config.num_moe_layers());
  moe::ReplicatedExpertsOptions experts;
  experts.num_layers = layers;
  experts.num_experts = static_cast<int>(config.num_experts);
  experts.num_slots = layers * static_cast<int>(SpareResidents(config).slots[0].size());
  experts.expert = PackedOf(config, options_);
  experts.device = rank->stream.get().device();
  experts.source = PackedSource(config);
  auto copier = moe::MakeExpertCopier(experts.device, {static_cast<const char*>(packed_.data()), packed_.bytes()});
  SY_CHECK_OK(copier.status());
  auto made = moe::ReplicatedExperts::Create(experts, *std::move(copier));
  SY_CHECK_OK(made.status());
  rank->experts = *std::move(made);
}

placement::Placement RankGroup::SpareResidents(const ModelConfig& config) const {
  return placement::ContiguousPlacement(static_cast<int>(config.num_experts), options_.world, options_.spare_slots);
}

void RankGroup::MakeBalancer(const ModelConfig& config, Rank* rank) const {
  MakeReplicatedExperts(config, rank);
  moe::PerStepBalancerOptions options;
  options.shape = {.mode = options_.placement,
                   .top_k = static_cast<int>(config.top_k),
                   .residents = std::vector<placement::Placement>(static_cast<size_t>(config.num_moe_layers()),
                                                                  SpareResidents(config)),
                   .costs = options_.costs};
  options.rank = rank->rank;
  options.experts = rank->experts.get();
  auto balancer = moe::PerStepBalancer::Create(std::move(options));
  SY_CHECK_OK(balancer.status());
  rank->balancer = *std::move(balancer);
  SY_CHECK_OK(rank->experts->Fill(rank->balancer->ExpertsHere(), absl::Now() + kStepDeadline,
                                  [](int64_t, int64_t) { return true; }));
  if (keeps_homes()) SY_CHECK_OK(rank->experts->Stand(rank->stream.get(), rank->balancer->HomesHere()));
}

void RankGroup::AddRank(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config, int rank,
                        comm::Communicator* comm) {
  auto added = std::make_unique<Rank>(options_, rank, comm);
  const auto residents = layout_.Residents(rank);
  LoadOptions load;
  load.dtype = options_.dtype;
  load.format = options_.formats;
  load.device = added->stream.get().device();
  load.residents.assign(residents.begin(), residents.end());
  load.experts = !offloaded();
  std::unique_ptr<const checkpoint::LoraAdapter> merged;
  if (!options_.merged_adapter.empty()) {
    auto adapter = checkpoint::LoraAdapter::Open(options_.merged_adapter);
    SY_CHECK_OK(adapter.status());
    merged = *std::move(adapter);
  }
  load.adapter = merged.get();
  absl::StatusOr<ModelWeights> weights = LoadWeights(checkpoint, config, std::move(load));
  SY_CHECK_OK(weights.status());
  for (const std::string& folder : options_.adapters) AddAdapter(folder, config, options_.dtype, &*weights);
  if (options_.expert_slots > 0) MakeOffload(config, added.get());
  if (placed()) MakeBalancer(config, added.get());
  moe::ExpertWeightProvider* experts = added->experts.get();
  if (added->offload != nullptr) experts = added->offload.get();
  auto model = Model::Create(added->stream, config, options_.dtype, *std::move(weights), kMaxGroupTokens, experts);
  SY_CHECK_OK(model.status());
  added->model = *std::move(model);
  if (options_.load_predictor) added->load_predictor = options_.load_predictor(*added->model);
  const int64_t token_bytes = KvBytesPerToken(config, options_.dtype);
  const WarmUpSize size = {
      .rows = kMaxGroupTokens * options_.batch, .recorded_rows = options_.batch, .layout = &layout_, .rank = rank};
  if (options_.warm_up) SY_CHECK_OK(WarmUp(added->stream, added->model.get(), size));
  auto runner = ModelRunner::Create(added->model.get(), added->stream,
                                    {.num_slots = options_.batch,
                                     .block_size = options_.block_size,
                                     .kv_cache_bytes = [&] { return token_bytes * kMaxGroupTokens * options_.batch; },
                                     .max_rows = static_cast<int32_t>(size.rows),
                                     .context = kMaxGroupTokens,
                                     .graphs = options_.graphs && (!offloaded() || keeps_homes()),
                                     .masks = options_.masks});
  SY_CHECK_OK(runner.status());
  added->runner = *std::move(runner);
  SY_CHECK_OK(added->runner->SetGroup(
      comm, &layout_, {.balancer = added->balancer.get(), .load_predictor = added->load_predictor.get()}));
  ranks_.push_back(std::move(added));
}

RankGroup::~RankGroup() = default;

const ModelConfig& RankGroup::config() const { return ranks_[0]->model->config(); }
ModelRunner& RankGroup::runner(int rank) {
  Rank& found = *ranks_[options_.only == nullptr ? rank : 0];
  SY_CHECK_EQ(found.rank, rank);
  return *found.runner;
}

const moe::ExpertOffload& RankGroup::offload(int rank) const { return *ranks_[rank]->offload; }
const moe::ReplicatedExperts& RankGroup::experts(int rank) const { return *ranks_[rank]->experts; }
const moe::PerStepBalancer& RankGroup::balancer(int rank) const { return *ranks_[rank]->balancer; }

void RankGroup::OnRanks(const std::function<void(Rank*)>& fn) {
  std::vector<std::thread> threads;
  for (size_t i = 1; i < ranks_.size(); ++i) threads.emplace_back([&fn, rank = ranks_[i].get()] { fn(rank); });
  fn(ranks_[0].get());
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::vector<int32_t>> RankGroup::Greedy(const std::vector<std::vector<int32_t>>& prompts,
                                                    int32_t num_tokens) {
  auto tokens = TryGreedy(prompts, num_tokens);
  SY_CHECK_OK(tokens.status());
  return *std::move(tokens);
}

absl::StatusOr<std::vector<std::vector<int32_t>>> RankGroup::TryGreedy(const std::vector<std::vector<int32_t>>& prompts,
                                                                       int32_t num_tokens) {
  GreedyPlanner planner(options_, prompts, num_tokens);
  std::vector<batching::StepPlan> plans;
  std::vector<std::vector<std::vector<int32_t>>> owners;  // [step][rank][item]
  batching::StepPlan plan;
  for (std::vector<std::vector<int32_t>> step_owners; planner.Next(&plan, &step_owners);) {
    plan.layer_costs = options_.costs;
    plan.decides = !options_.every_other_step || plan.step % 2 == 1;
    plans.push_back(plan);
    for (const batching::RowTransfer& transfer : plan.transfers) rows_given_ += transfer.rows;
    owners.push_back(step_owners);
  }
  std::vector<std::vector<int32_t>> tokens(prompts.size());
  std::vector<absl::Status> statuses(static_cast<size_t>(options_.world));
  OnRanks([&](Rank* rank) {
    statuses[static_cast<size_t>(rank->rank)] = [&]() -> absl::Status {
      ModelRunner& runner = *rank->runner;
      if (options_.capture) RETURN_IF_ERROR(runner.CaptureGraphs(kStepDeadline, [](int64_t, int64_t) { return true; }));
      size_t finished = 0;
      const auto finish = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(const batching::RankResult result, runner.Finish());
        for (size_t k = 0; k < result.items.size(); ++k) {
          const std::vector<int32_t>& sampled = result.items[k].tokens;
          std::vector<int32_t>& out = tokens[owners[finished][rank->rank][k]];
          out.insert(out.end(), sampled.begin(), sampled.end());
        }
        if (rank == ranks_[0].get()) last_timings_ = result.timings;
        ++finished;
        return absl::OkStatus();
      };
      for (const batching::StepPlan& plan : plans) {
        if (runner.num_started() == options_.in_flight) RETURN_IF_ERROR(finish());
        RETURN_IF_ERROR(runner.Start(plan, plan.ranks[rank->rank], absl::Now() + kStepDeadline));
      }
      while (runner.num_started() > 0) RETURN_IF_ERROR(finish());
      return absl::OkStatus();
    }();
  });
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return tokens;
}

std::vector<double> RankGroup::Logits(const std::vector<int32_t>& tokens) {
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel(
      {.micro_batches = options_.micro_batches, .shared_expert = config().shared_intermediate > 0});
  std::vector<int32_t> rank_rows(options_.world);
  rank_rows[0] = static_cast<int32_t>(tokens.size());
  const std::vector<batching::RowTransfer> transfers = batching::GiveRows(rank_rows, options_.min_rebalance_rows);
  for (const batching::RowTransfer& transfer : transfers) rows_given_ += transfer.rows;
  std::vector<double> out;
  OnRanks([&](Rank* rank) {
    const auto num_rows = static_cast<int32_t>(rank->rank == 0 ? tokens.size() : 0);
    std::vector<int32_t> blocks((num_rows + options_.block_size - 1) / options_.block_size);
    std::iota(blocks.rbegin(), blocks.rend(), 0);
    Batch batch;
    Model& model = *rank->model;
    const Stream& stream = rank->stream;
    if (rank->rank == 0) {
      batch.tokens = tokens;
      for (int32_t p = 0; p < num_rows; ++p) {
        batch.rope_rows.push_back(model.rope().RowOf(p, num_rows));
        batch.logit_rows.push_back(p);
      }
      if (!options_.adapter_of.empty()) batch.adapters.assign(tokens.size(), options_.adapter_of.front());
      batch.sequences.push_back({.row_begin = 0, .num_query = num_rows, .start_pos = 0, .block_table = blocks});
    }
    absl::StatusOr<KvCache> cache =
        KvCache::Create(config(), options_.dtype, options_.block_size, 16 << 20, stream.device());
    SY_CHECK_OK(cache.status());
    SentBatch sent;
    if (!stream.device().is_cpu()) SendBatch(stream, cache->layer(0), &batch, &sent);
    const auto sink = [&](int64_t, const TensorView& on_device) {
      const auto copy = CopyToHost(stream, on_device);
      SY_CHECK_OK(copy.status());
      const TensorView logits = *copy;
      VisitDType(logits.dtype(), [&]<class Elem>() {
        for (int64_t i = 0; i < logits.dim(0); ++i) {
          for (int64_t j = 0; j < logits.dim(1); ++j) {
            out.push_back(static_cast<double>(static_cast<Acc<Elem>>(logits.row<Elem>(i)[j])));
          }
        }
      });
      return absl::OkStatus();
    };
    TokenRebalancer rebalancing;
    SY_CHECK_OK(rebalancing.Begin(transfers, num_rows, rank->comm, absl::Now() + kStepDeadline, &batch));
    moe::MoeStats stats;
    moe::MoeContext moe = {.stream = &stream, .comm = rank->comm, .layout = &layout_, .schedule = &schedule};
    moe.deadline = absl::Now() + kStepDeadline;
    moe.stats = &stats;
    const StageIn in = {.batch = &batch, .moe = &moe, .rebalancing = &rebalancing, .logits = LogitsSink(sink)};
    SY_CHECK_OK(model.Forward(in, model.all_layers(), &*cache, nullptr).status());
  });
  return out;
}

}  // namespace switchyard::model
