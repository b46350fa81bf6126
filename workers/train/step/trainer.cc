#include "workers/train/step/trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/job_state.h"
#include "scheduler/jobs/trainer_limits.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/comm/core/timed.h"
#include "workers/model/config/memory_plan.h"
#include "workers/moe/layer/expert_capacity.h"
#include "workers/ops/attention/attention.h"
#include "workers/ops/optimizer/adamw.h"
#include "workers/train/reduce/gradient_norm.h"
#include "workers/train/step/row_keys.h"

namespace switchyard::train {
namespace {

// Positions in a block of the KV cache of a pass: attention's key tile, or fewer.  Where documents may begin anywhere,
// one, so that any run of rows is a sequence with blocks of its own and the cache needs no more room.
int32_t BlockSizeOf(const TrainerOptions& options) {
  if (options.document_mask) return 1;
  return static_cast<int32_t>(std::min<int64_t>(ops::kAttentionKeyTile, options.max_length));
}

int64_t BlocksOf(int64_t length, int64_t block_size) { return (length + block_size - 1) / block_size; }

int64_t CountTokens(const TrainRows& rows) {
  return std::count_if(rows.targets.begin(), rows.targets.end(), [](int32_t target) { return target >= 0; });
}

int64_t NumRows(const TrainRows& rows) { return static_cast<int64_t>(rows.tokens.size()); }

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Stream& stream, model::Model* model,
                                                         Parameters* parameters, const TrainerOptions& options) {
  RETURN_IF_ERROR(CheckTrainerOptions(options, *model));
  const int32_t block_size = BlockSizeOf(options);
  const int64_t blocks = options.max_sequences * BlocksOf(options.max_length, block_size);
  const int64_t cache_bytes = blocks * block_size * model::KvBytesPerToken(model->config(), model->dtype());
  ASSIGN_OR_RETURN(model::KvCache cache,
                   model::KvCache::Create(model->config(), model->dtype(), block_size, cache_bytes));
  std::unique_ptr<Trainer> trainer(new Trainer(stream, model, parameters, options, std::move(cache)));
  if (options.restore.offloads()) {
    ASSIGN_OR_RETURN(trainer->activations_, ActivationFile::Create(options.open_activations));
  }
  return trainer;
}

Trainer::Trainer(const Stream& stream, model::Model* model, Parameters* parameters, const TrainerOptions& options,
                 model::KvCache cache)
    : stream_(stream),
      model_(model),
      parameters_(parameters),
      options_(options),
      cache_(std::move(cache)),
      head_(model),
      noise_{.rates = options.noise, .row_keys = {}},
      blocks_(options.max_sequences * BlocksOf(options.max_length, BlockSizeOf(options))),
      d_residual_(AccDType(model->dtype()), {model->config().hidden}) {
  std::iota(blocks_.begin(), blocks_.end(), 0);
  DropBuffers();
}

void Trainer::DropBuffers() {
  saved_.emplace(model_->config(), model_->dtype(), options_.save);
  backward_.emplace(model_);
  moe_scratch_ = moe::MoeScratch();
}

absl::Status Trainer::SetGroup(const TrainerGroup& group) {
  RETURN_IF_ERROR(CheckTrainerGroup(group, model_->weights().residents));
  const TensorView gradient = parameters_->gradients().embedding;
  std::unique_ptr<SparseEmbedding> embedding;
  if (group.world->world() > 1 && gradient.rank() != 0 && GathersEmbedding(options_.step_tokens, gradient.dim(0))) {
    embedding = std::make_unique<SparseEmbedding>(gradient, group.world->rank(), group.world->world());
  }
  ASSIGN_OR_RETURN(sync_, GradientReducer::Create(options_.communication, group, parameters_->gradients(),
                                                  parameters_->ShardedGradients(), embedding.get()));
  embedding_ = std::move(embedding);
  parameters_->SetReplica(group.replicas == nullptr ? 0 : group.replicas->rank());
  group_ = group;
  return absl::OkStatus();
}

template <class Elem>
absl::Status Trainer::SumOverRanks(absl::Span<Elem> values, absl::Time deadline) {
  const auto count = static_cast<int64_t>(values.size());
  return SumOver(stream_, group_.world, TensorView(values.data(), DTypeOf<Elem>::value, {count}), deadline);
}

absl::StatusOr<Trainer::GlobalCounts> Trainer::CountAll(absl::Span<const TrainRows> micro_batches, bool trains,
                                                        absl::Time deadline) {
  std::vector<int64_t> counts = {0, 0};
  for (const TrainRows& rows : micro_batches) {
    counts[0] += CountTokens(rows);
    counts[1] += static_cast<int64_t>(rows.pairs.size());
    counts.push_back(NumRows(rows));
  }
  const bool gathers = trains && embedding_ != nullptr;
  if (gathers) {
    counts.resize(counts.size() + group_.world->world());
    *(counts.end() - group_.world->world() + group_.world->rank()) = embedding_->Begin(micro_batches);
  }
  RETURN_IF_ERROR(SumOverRanks(absl::MakeSpan(counts), deadline));
  const auto rows = counts.begin() + 2, behind = rows + static_cast<int64_t>(micro_batches.size());
  if (gathers) RETURN_IF_ERROR(embedding_->SetCounts(absl::MakeConstSpan(counts).last(group_.world->world())));
  return GlobalCounts{.tokens = counts[0], .pairs = counts[1], .rows = {rows, behind}};
}

void Trainer::BuildBatch(const TrainRows& rows) {
  batch_.Clear();
  batch_.tokens = rows.tokens;
  auto border = rows.borders.begin();
  int64_t used_blocks = 0;
  for (int64_t begin = 0; begin < NumRows(rows);) {
    int64_t end = rows.packed ? NumRows(rows) : begin + rows.length - begin % rows.length;
    border = std::upper_bound(border, rows.borders.end(), begin);
    if (border != rows.borders.end() && *border < end) end = *border;
    const int64_t count = end - begin, blocks = BlocksOf(count, cache_.block_size());
    for (int64_t p = 0; p < count; ++p) {
      batch_.rope_rows.push_back(model_->rope().RowOf(static_cast<int32_t>(p), count));
    }
    batch_.sequences.push_back({.row_begin = begin,
                                .num_query = static_cast<int32_t>(count),
                                .block_table = absl::MakeConstSpan(blocks_).subspan(used_blocks, blocks)});
    used_blocks += blocks;
    begin = end;
  }
}

void Trainer::ChooseSchedule(int64_t rows, bool trains) {
  const model::ModelConfig& config = model_->config();
  const jobs::LayerRows of_layer = {.rows = rows,
                                    .world = group_.world->world(),
                                    .holders = group_.experts->world(),
                                    .top_k = config.top_k,
                                    .row_bytes = config.hidden * DTypeBytes(model_->dtype())};
  const bool travels = group_.experts->world() > 1;
  const int32_t chunks = trains && travels && chunks_ > 0
                             ? chunks_
                             : jobs::ChunksOfLayer(options_.communication, of_layer, pipeline::kMaxMicroBatches);
  SetSchedule(chunks, trains);
}

void Trainer::SetSchedule(int32_t chunks, bool trains) {
  if (schedule_.num_chunks == chunks && schedule_trains_ == trains && !schedule_.forward.empty()) return;
  schedule_trains_ = trains;
  schedule_ = pipeline::BuildExpertParallel({.micro_batches = chunks,
                                             .shared_expert = model_->config().shared_intermediate > 0,
                                             .in_turn = true,
                                             .trains = trains,
                                             .restore = options_.restore});
}

// If no expert can get more rows than its capacity, ranks need not compare counts.
moe::ExpertCapacity Trainer::CapacityFor(int64_t rows) const {
  const model::ModelConfig& config = model_->config();
  const int64_t capacity = moe::CapacityOf(options_.capacity_factor, config.top_k, rows, config.num_experts);
  if (capacity == 0 || capacity >= rows) return {};
  return {.rows = capacity, .ranks = group_.world};
}

moe::MoeContext Trainer::ContextOf(const moe::ExpertCapacity& capacity, absl::Time deadline, moe::MoeStats* stats) {
  return {.stream = &stream_,
          .comm = group_.experts,
          .layout = group_.layout,
          .schedule = &schedule_,
          .deadline = deadline,
          .stats = stats,
          .scratch = &moe_scratch_,
          .offload = activations_.get(),
          .capacity = capacity};
}

const model::TrainingNoise* Trainer::NoiseOf(const TrainRows& rows) {
  if (!noise_.rates.any()) return nullptr;
  noise_.row_keys = RowKeysOf(rows, options_.seed, steps_ + 1);
  return &noise_;
}

absl::StatusOr<TensorView> Trainer::Forward(const TrainRows& rows, const moe::MoeContext& moe) {
  BuildBatch(rows);
  saved_->Begin(NumRows(rows));
  ASSIGN_OR_RETURN(model::StageOut out, model_->Forward({.batch = &batch_, .moe = &moe, .noise = NoiseOf(rows)},
                                                        model_->all_layers(), &cache_, &*saved_));
  seconds_.all_to_all += moe.stats->exchange_seconds;
  seconds_.experts += moe.stats->expert_seconds;
  dropped_ += moe.stats->dropped_rows;
  return out.hidden;
}

// Sums the routers' statistics over all ranks.
absl::Status Trainer::SumTotals(absl::Time deadline) {
  if (group_.world->world() == 1) return absl::OkStatus();
  std::vector<int64_t> counts;
  std::vector<double> sums;
  for (const ops::RouterStatistics& each : saved_->router_statistics()) {
    counts.insert(counts.end(), each.counts.begin(), each.counts.end());
    sums.insert(sums.end(), each.probability_sums.begin(), each.probability_sums.end());
    sums.push_back(each.squared_logsumexp_sum);
  }
  RETURN_IF_ERROR(SumOverRanks(absl::MakeSpan(counts), deadline));
  RETURN_IF_ERROR(SumOverRanks(absl::MakeSpan(sums), deadline));
  auto count = counts.begin();
  auto sum = sums.begin();
  for (ops::RouterStatistics& each : saved_->router_statistics()) {
    for (int64_t& to : each.counts) to = *count++;
    for (double& to : each.probability_sums) to = *sum++;
    each.squared_logsumexp_sum = *sum++;
  }
  return absl::OkStatus();
}

void Trainer::CountChosen() {
  const int64_t experts = model_->config().num_experts;
  chosen_.resize(saved_->router_statistics().size() * experts);
  for (size_t layer = 0; layer < saved_->router_statistics().size(); ++layer) {
    const std::vector<int64_t>& counts = saved_->router_statistics()[layer].counts;  // [K, E]
    for (size_t i = 0; i < counts.size(); ++i) chosen_[layer * experts + i % experts] += counts[i];
  }
}

absl::Status Trainer::RunMicroBatch(const TrainRows& rows, const GlobalCounts& counts, size_t index,
                                    absl::Time deadline, StepReport* report) {
  const int64_t step_rows = std::accumulate(counts.rows.begin(), counts.rows.end(), int64_t{0});
  const double share = static_cast<double>(counts.rows[index]) / static_cast<double>(step_rows);
  // (Packed micro-batches differ in rows; chunks are chosen for full ones, so that they do not change by the step.)
  const int64_t nominal_rows =
      rows.packed ? options_.max_sequences * options_.max_length * group_.world->world() : counts.rows[index];
  ChooseSchedule(nominal_rows, true);
  moe::MoeStats stats;
  moe::MoeContext moe = ContextOf(CapacityFor(counts.rows[index]), deadline, &stats);
  TensorView residual;
  {
    const comm::Timed timed(&seconds_.forward);
    ASSIGN_OR_RETURN(residual, Forward(rows, moe));
    RETURN_IF_ERROR(SumTotals(deadline));
  }
  CountChosen();
  report->expert_ops += schedule_.num_chunks * model_->config().num_moe_layers();
  report->chunks = schedule_.num_chunks;
  report->step_rows += counts.rows[index];
  const comm::Timed timed(&seconds_.backward);
  const RouterLosses router =
      ComputeRouterLosses(options_.router, saved_->router_statistics(), counts.rows[index], share);
  report->balance_loss += share * router.balance;
  report->z_loss += share * router.z;
  const TensorView d_residual = d_residual_.Rows(residual.dim(0));
  RETURN_IF_ERROR(RunHead(rows, counts, residual, d_residual, report));
  stats.Clear();
  model::BackwardIn in = {
      .forward = {.batch = &batch_, .moe = &moe, .noise = noise_.rates.any() ? &noise_ : nullptr},
      .cache = &cache_,
      .saved = &*saved_,
      .gradients = &parameters_->gradients(),
      .embedding_rows = embedding_ == nullptr ? TensorView() : embedding_->own(),
      .embedding_slots = embedding_ == nullptr ? IntView() : IntView(embedding_->SlotsOf(rows.tokens)),
      .router_losses = router.of_layers};
  if (index + 1 == counts.rows.size()) {  // no later micro-batch adds to the gradients
    sync_->Start(deadline);
    moe.watch = sync_.get();
    in.on_stage = [this](const model::BackwardStage& stage) { sync_->StageDone(stage); };
  }
  RETURN_IF_ERROR(backward_->Run(in, model_->all_layers(), d_residual));
  seconds_.backward_experts += stats.expert_seconds;
  seconds_.backward_all_to_all += stats.exchange_seconds;
  seconds_.all_to_all += stats.exchange_seconds;
  return absl::OkStatus();
}

absl::StatusOr<StepReport> Trainer::Step(absl::Span<const TrainRows> micro_batches, double learning_rate,
                                         absl::Time deadline) {
  const absl::Time begin = MonotonicNow();
  seconds_ = {};
  chosen_.clear();
  dropped_ = 0;
  preferences_ = {};
  absl::StatusOr<StepReport> report = EndingGroup(RunStep(micro_batches, learning_rate, deadline));
  if (!report.ok() || report->skipped) return report;
  for (size_t layer = 0; layer < model_->weights().layers.size(); ++layer) {
    if (!model_->weights().layers[layer].moe.has_value()) continue;
    const auto first = chosen_.begin() + static_cast<int64_t>(layer) * model_->config().num_experts;
    report->dead_experts += std::count(first, first + model_->config().num_experts, 0);
  }
  report->seconds = seconds_;
  report->seconds.total = absl::ToDoubleSeconds(MonotonicNow() - begin);
  return report;
}

void Trainer::EndGroup(const absl::Status& error) {
  if (group_.world->world() > 1) group_.world->Abort(error.message());
  sync_->Cancel();
}

absl::StatusOr<StepReport> Trainer::RunStep(absl::Span<const TrainRows> micro_batches, double learning_rate,
                                            absl::Time deadline) {
  SY_CHECK(group_.world != nullptr && !micro_batches.empty());
  if (!(learning_rate >= 0 && learning_rate <= jobs::kMaxLearningRate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("trainer: learning_rate is ", learning_rate, ", outside [0, ", jobs::kMaxLearningRate, "]"));
  }
  RETURN_IF_ERROR(CheckMicroBatches(options_, model_->config().vocab_size, micro_batches));
  if (of_pairs()) RETURN_IF_ERROR(CheckPairs(micro_batches, /*referred=*/true));
  ASSIGN_OR_RETURN(GlobalCounts counts, CountAll(micro_batches, /*trains=*/true, deadline));
  // The same number on every rank.  Balance losses, moments and decay alone must not move parameters.
  if (counts.tokens == 0) {
    ++steps_;
    ++skipped_steps_;
    return StepReport{.skipped = true,
                      .step_rows = std::accumulate(counts.rows.begin(), counts.rows.end(), int64_t{0})};
  }
  RETURN_IF_ERROR(parameters_->ZeroGradients());
  const ActivationFileCounters activations = Activations();
  StepReport report = {.tokens = counts.tokens};
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    RETURN_IF_ERROR(RunMicroBatch(micro_batches[i], counts, i, deadline, &report));
  }
  if (group_.world->world() > 1) {
    const comm::Timed timed(&seconds_.all_reduce);
    RETURN_IF_ERROR(sync_->Finish());
  }
  RETURN_IF_ERROR(FinishLoss(counts, deadline, &report));
  const comm::Timed timed(&seconds_.optimizer);
  ASSIGN_OR_RETURN(report.gradient_norm, GradientNorm(stream_, *parameters_, group_, deadline));
  // The numbers are the same on every rank: all continue, or none does.
  if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm)) {
    return absl::DataLossError(absl::StrCat(jobs::kNotFinite, ": loss ", report.loss, ", norm of gradients ",
                                            report.gradient_norm, " in step ", steps_ + 1));
  }
  const bool clips = options_.optimizer.clip_norm > 0 && report.gradient_norm > options_.optimizer.clip_norm;
  // (The scale is that of PyTorch's clip_grad_norm_.)
  const double waited = Offloaded().wait_seconds;
  report.saved_bytes = Activations().saved_bytes - activations.saved_bytes;
  seconds_.activations = Activations().wait_seconds - activations.wait_seconds;
  const double scale = clips ? options_.optimizer.clip_norm / (report.gradient_norm + 1e-6) : 1.0;
  RETURN_IF_ERROR(Update(learning_rate, scale, deadline));
  seconds_.offload = Offloaded().wait_seconds - waited;
  report.offloaded_bytes = Offloaded().bytes;
  return report;
}

absl::Status Trainer::Update(double learning_rate, double gradient_scale, absl::Time deadline) {
  ++steps_;
  const jobs::OptimizerSpec& adamw = options_.optimizer;
  ops::AdamWDesc desc = {.step = steps_ - skipped_steps_,
                         .lr = learning_rate,
                         .beta1 = adamw.beta1,
                         .beta2 = adamw.beta2,
                         .eps = adamw.epsilon,
                         .gradient_scale = gradient_scale};
  const auto change = [&](ParameterBlock& block) -> absl::Status {
    if (!block.by_gradient) {
      BalanceRouter(block);
      return absl::OkStatus();
    }
    for (const TrainedPart& part : TrainedPartsOf(block)) {
      const ElementRange here = Intersect(part.elements, block.own());
      if (here.count == 0) continue;
      desc.lr = learning_rate * part.rule.rate;
      desc.weight_decay = part.rule.weight_decay.value_or(block.decayed ? adamw.weight_decay : 0);
      RETURN_IF_ERROR(ops::AdamWStep(stream_, desc,
                                     {.parameter = block.StateAt(&ParameterBlock::master, here),
                                      .m = block.StateAt(&ParameterBlock::mean, here),
                                      .v = block.StateAt(&ParameterBlock::mean_squares, here),
                                      .gradient = block.GradientAt(here)}));
    }
    return absl::OkStatus();
  };
  return parameters_->Update(change, {.comm = group_.world, .deadline = deadline});
}

void Trainer::BalanceRouter(const ParameterBlock& block) {
  if (options_.balance_bias_rate == 0) return;
  const size_t experts = static_cast<size_t>(model_->config().num_experts);
  for (size_t layer = 0; layer < model_->weights().layers.size(); ++layer) {
    const std::optional<model::MoeWeights>& moe = model_->weights().layers[layer].moe;
    if (!moe.has_value() || block.tensor != &moe->router_bias) continue;
    MoveRouterBias(options_.balance_bias_rate, absl::MakeConstSpan(chosen_).subspan(layer * experts, experts),
                   block.master);
  }
}

}  // namespace switchyard::train
