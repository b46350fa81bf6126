#include "workers/model/runner/model_runner.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::model {

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(Model* model, const Stream& stream,
                                                                 const RunnerOptions& options) {
  if (options.context < 1 || options.context > model->max_positions()) {
    return absl::InvalidArgumentError(
        absl::StrCat("context ", options.context, " is outside [1, ", model->max_positions(), "]"));
  }
  if (options.num_slots < 1 || options.max_rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_num_seqs ", options.num_slots, " and max_batched_tokens ",
                                                   options.max_rows, " must be positive"));
  }
  std::unique_ptr<DeviceSteps> device_steps;
  if (!stream.device().is_cpu()) {
    const int64_t block_size = std::max(options.block_size, 1);  // others the cache refuses
    const int64_t blocks = (options.context + block_size - 1) / block_size;
    ASSIGN_OR_RETURN(device_steps, DeviceSteps::Create(stream, model,
                                                       {.slots = options.num_slots,
                                                        .rows = options.max_rows,
                                                        .blocks = blocks,
                                                        .context = options.context,
                                                        .graphs = options.graphs}));
  }
  ASSIGN_OR_RETURN(const int64_t bytes, options.kv_cache_bytes());
  ASSIGN_OR_RETURN(KvCache cache, KvCache::Create(model->config(), model->dtype(), options.block_size, bytes,
                                                  stream.device(), options.kv_format));
  if (options.touch_cache) RETURN_IF_ERROR(cache.Touch(stream));
  const SlotLimits limits = {.num_slots = options.num_slots,
                             .num_blocks = cache.num_blocks(),
                             .block_size = options.block_size,
                             .vocab_size = static_cast<int32_t>(model->config().vocab_size),
                             .context = options.context,
                             .max_rows = options.max_rows,
                             .num_adapters = static_cast<int32_t>(model->num_adapters())};
  std::unique_ptr<ModelRunner> runner(new ModelRunner(model, stream, std::move(cache), limits));
  runner->pace_ = options.pace;
  runner->add_outputs_ = options.add_outputs;
  runner->masks_ = options.masks;
  if (device_steps == nullptr) return runner;
  runner->records_steps_ = options.graphs;
  runner->device_steps_ = std::move(device_steps);
  runner->device_steps_->UseCache(&runner->cache_);
  return runner;
}

absl::Status ModelRunner::SetGroup(comm::Communicator* comm, const moe::ExpertLayout* layout,
                                   const LayerGuides& guides) {
  if (guides.load_predictor != nullptr && records_steps_) {
    return absl::FailedPreconditionError(
        "a load predictor with steps that are recorded: what it says of one step would be every step's");
  }
  if (guides.balancer != nullptr && records_steps_ && !guides.balancer->may_decide_nothing()) {
    return absl::FailedPreconditionError("a load balancer that decides in every step, with steps that are recorded");
  }
  const absl::Span<const int32_t> residents = layout->Residents(comm->rank());
  const std::vector<int32_t>& held = model_->weights().residents;
  if (!std::equal(residents.begin(), residents.end(), held.begin(), held.end())) {
    return absl::InvalidArgumentError(absl::StrCat("the layout gives rank ", comm->rank(), " ", residents.size(),
                                                   " experts; other ones than the ", held.size(), " that it holds"));
  }
  LeaveGroup();
  comm_ = comm;
  layout_ = layout;
  guides_ = guides;
  slots_.Clear();
  return absl::OkStatus();
}

void ModelRunner::LeaveGroup() {
  started_.clear();
  if (device_steps_ != nullptr) device_steps_->Clear();
  comm_ = nullptr;
  layout_ = nullptr;
  guides_ = {};
}

absl::Status ModelRunner::UseSchedule(int32_t micro_batches) {
  if (micro_batches < 1 || micro_batches > pipeline::kMaxMicroBatches) {
    return absl::InternalError(
        absl::StrCat("plan: micro_batches ", micro_batches, " is outside [1, ", pipeline::kMaxMicroBatches, "]"));
  }
  if (micro_batches == schedule_micro_batches_) return absl::OkStatus();
  schedule_ = pipeline::BuildExpertParallel(
      {.micro_batches = micro_batches, .shared_expert = model_->config().shared_intermediate > 0});
  schedule_micro_batches_ = micro_batches;
  return absl::OkStatus();
}

absl::StatusOr<batching::RankResult> ModelRunner::Execute(const batching::StepPlan& plan,
                                                          const batching::RankPlan& rank_plan, absl::Time deadline) {
  SY_CHECK_EQ(num_started(), 0);
  RETURN_IF_ERROR(Start(plan, rank_plan, deadline));
  return Finish();
}

absl::Status ModelRunner::Start(const batching::StepPlan& plan, const batching::RankPlan& rank_plan,
                                absl::Time deadline) {
  SY_CHECK(comm_ != nullptr);
  SY_CHECK_LT(num_started(), kMaxStarted);
  Started step = {
      .result = {}, .begin = MonotonicNow(), .deadline = deadline, .epoch = plan.group_epoch, .number = plan.step};
  if (device_steps_ != nullptr && !plan.transfers.empty())
    return absl::UnimplementedError("plan: transfers of rows on a device");
  RETURN_IF_ERROR(UseSchedule(plan.micro_batches));
  RETURN_IF_ERROR(slots_.Validate(rank_plan));
  const bool masked = std::any_of(rank_plan.items.begin(), rank_plan.items.end(),
                                  [](const batching::StepItem& item) { return item.masked; });
  if (masked && masks_ == nullptr) return absl::InternalError("plan: masked items, and nobody brings masks");
  item_masks_.clear();
  if (device_steps_ != nullptr) RETURN_IF_ERROR(ValidateDecodes(plan, rank_plan));
  slots_.Apply(rank_plan);
  // (The plan says whether all ranks have plain decodes; this is about this rank alone.)
  const bool plain = device_steps_ != nullptr && IsPlain(rank_plan);
  // The host must know all that was sampled before it samples.
  while (!plain && device_steps_ != nullptr && device_steps_->under_way() > 0) RETURN_IF_ERROR(CollectOldest());
  BuildBatch(rank_plan);
  step.result.items.resize(rank_plan.items.size());
  RETURN_IF_ERROR(plain ? Enqueue(plan, rank_plan, &step) : RunNow(plan, rank_plan, &step));
  step.result.ledger_hash = comm_->ledger().hash();
  started_.push_back(std::move(step));
  return absl::OkStatus();
}

moe::MoeContext ModelRunner::ContextOf(absl::Time deadline, moe::MoeStats* stats) const {
  return {.stream = &stream_,
          .comm = comm_,
          .layout = layout_,
          .schedule = &schedule_,
          .deadline = deadline,
          .stats = stats,
          .balancer = guides_.balancer,
          .load_predictor = guides_.load_predictor,
          .add_outputs = add_outputs_,
          .pace = pace_};
}

absl::Status ModelRunner::RunNow(const batching::StepPlan& plan, const batching::RankPlan& rank_plan, Started* step) {
  batching::RankResult& result = step->result;
  const auto take_logits = [&](int64_t first, const TensorView& logits) {
    return TakeLogits(rank_plan, first, logits, step);
  };
  const bool wants_paths = WantsPaths(rank_plan);
  if (wants_paths && !plan.transfers.empty()) {
    return absl::InternalError("plan: rows are given away in a step that asks for their experts");
  }
  // After an error, work under way must not outlive the group.
  const absl::Cleanup drop = [this] { rebalancing_.Drop(); };
  RETURN_IF_ERROR(rebalancing_.Begin(plan.transfers, rank_plan.NumRows(), comm_, step->deadline, &batch_));
  batch_.num_decode_rows = std::min(batch_.num_decode_rows, batch_.num_rows());  // others may be given away
  if (device_steps_ != nullptr) RETURN_IF_ERROR(device_steps_->Upload(&batch_));
  RETURN_IF_ERROR(BeginGuides(plan));
  moe::MoeStats stats;
  moe::MoeContext moe = ContextOf(step->deadline, &stats);
  if (plan.decides && guides_.all_experts != nullptr) {
    moe.comm = alone_.get();
    moe.layout = guides_.all_experts;
  }
  const StageIn in = {.batch = &batch_,
                      .moe = &moe,
                      .rebalancing = &rebalancing_,
                      .keep_topk = wants_paths,
                      .logits = LogitsSink(take_logits)};
  ASSIGN_OR_RETURN(StageOut out, model_->Forward(in, model_->all_layers(), &cache_, /*saved=*/nullptr));
  if (wants_paths) RETURN_IF_ERROR(TakePaths(rank_plan, out.topk_idx, step));
  Finalize(rank_plan, &result);
  result.rows = batch_.num_rows();
  TakeStats(&stats, &result);
  RETURN_IF_ERROR(TakeCounts(out.expert_counts, step->deadline, &result.expert_counts));
  if (out.decode_counts.rank() != 0) {
    RETURN_IF_ERROR(TakeCounts(out.decode_counts, step->deadline, &result.decode_expert_counts));
  } else if (batch_.num_decode_rows > 0) {
    result.decode_expert_counts = result.expert_counts;
  }
  result.timings.total_seconds = absl::ToDoubleSeconds(MonotonicNow() - step->begin) - result.timings.mask_seconds;
  result.timings.attention_seconds = out.attention_seconds;
  result.timings.expert_seconds = stats.expert_seconds;
  result.timings.exchange_seconds = stats.exchange_seconds + rebalancing_.exchange_seconds();
  result.timings.head_seconds = out.head_seconds - result.timings.mask_seconds;
  return absl::OkStatus();
}

void ModelRunner::TakeStats(moe::MoeStats* stats, batching::RankResult* result) const {
  result->rows_sent = stats->rows_sent;
  result->rows_received = stats->rows_received;
  result->expert_rows = stats->expert_rows;
  result->layer_rows = std::move(stats->layer_rows);
  result->layer_seconds = std::move(stats->layer_seconds);
  result->experts_read = stats->experts_read;
  result->fine_tuned_layers = stats->fine_tuned_layers;
  result->timings.routed_seconds = stats->routed_seconds;
  result->timings.gather_seconds = stats->gather_seconds;
  result->timings.decide_seconds = stats->decide_seconds;
  result->timings.decide_cpu_seconds = stats->decide_cpu_seconds;
}

absl::Status ModelRunner::BeginGuides(const batching::StepPlan& plan) {
  if (guides_.balancer != nullptr)
    RETURN_IF_ERROR(
        guides_.balancer->BeginStep({.step = plan.step, .decides = plan.decides, .costs = plan.layer_costs}));
  if (guides_.load_predictor == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      const absl::Span<const placement::LayerEstimate> expected,
      guides_.load_predictor->Begin(
          {.num_rows = batch_.num_rows(), .num_decode_rows = batch_.num_decode_rows, .token_ids = batch_.tokens}));
  // Not for a load balancer, which needs all ranks' estimates: these would take an exchange of their own, and the next
  // one, with the first gate's counts, knows more.
  return model_->experts() == nullptr ? absl::OkStatus() : model_->experts()->BeginPass(expected);
}

absl::Status ModelRunner::TakeCounts(const TensorView& counts, absl::Time deadline, std::vector<int64_t>* to) {
  ASSIGN_OR_RETURN(const TensorView on_host, OnHost(&counts_on_host_, counts, deadline));
  *to = OfMoeLayers({on_host.data<int32_t>(), static_cast<size_t>(on_host.NumElements())});
  return absl::OkStatus();
}

absl::StatusOr<TensorView> ModelRunner::OnHost(HostCopy* copy, const TensorView& from, absl::Time deadline) {
  absl::StatusOr<TensorView> on_host = copy->Take(stream_, from, deadline);
  RETURN_IF_ERROR(comm_->status());  // explains why a collective was cut short
  return on_host;
}

std::vector<int64_t> ModelRunner::OfMoeLayers(absl::Span<const int32_t> counts) const {
  const ModelConfig& config = model_->config();
  const auto width = static_cast<size_t>(config.num_experts);
  std::vector<int64_t> kept;
  kept.reserve(static_cast<size_t>(config.num_moe_layers()) * width);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (!config.layers[i].moe) continue;
    const absl::Span<const int32_t> of_layer = counts.subspan(i * width, width);
    kept.insert(kept.end(), of_layer.begin(), of_layer.end());
  }
  return kept;
}

void ModelRunner::BuildBatch(const batching::RankPlan& plan) {
  batch_.Clear();
  uses_.clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const batching::StepItem& item = plan.items[i];
    const Slot& slot = slots_.slot(item.slot);
    if (slot.broken) continue;
    const int64_t row_begin = batch_.num_rows();
    const bool decode = item.num_query == 1 && item.start_pos >= slot.num_prompt_tokens;
    if (decode && batch_.num_decode_rows == row_begin) ++batch_.num_decode_rows;  // decodes come first in plans
    for (int32_t p = item.start_pos; p < item.start_pos + item.num_query; ++p) {
      // The device looks up by slot what only it knows.
      batch_.tokens.push_back(slot.tokens[p] == kPendingToken ? -1 - item.slot : slot.tokens[p]);
      batch_.rope_rows.push_back(model_->rope().RowOf(p, slot.num_prompt_tokens));
    }
    if (model_->num_adapters() > 0) batch_.adapters.resize(batch_.tokens.size(), slot.adapter);
    batch_.sequences.push_back({.row_begin = row_begin,
                                .num_query = item.num_query,
                                .start_pos = item.start_pos,
                                .block_table = slot.block_table,
                                .slot = item.slot,
                                .generation = slot.generation});
    AddLogitRows(item, static_cast<int32_t>(i), row_begin);
  }
}

void ModelRunner::AddLogitRows(const batching::StepItem& item, int32_t item_idx, int64_t row_begin) {
  const Slot& slot = slots_.slot(item.slot);
  for (int32_t q = 0; q < item.num_query; ++q) {
    const int32_t next = item.start_pos + q + 1;
    const bool sample = item.sample && q == item.num_query - 1;
    const bool score = slot.sampling.num_prompt_logprobs >= 0 && next < slot.num_prompt_tokens;
    if (!sample && !score) continue;
    batch_.logit_rows.push_back(static_cast<int32_t>(row_begin + q));
    uses_.push_back({.item = item_idx, .sample = sample, .next_token = sample ? 0 : slot.tokens[next]});
  }
}

bool ModelRunner::WantsPaths(const batching::RankPlan& plan) const {
  return std::any_of(plan.items.begin(), plan.items.end(), [this](const batching::StepItem& item) {
    return slots_.slot(item.slot).sampling.expert_paths_from >= 0;
  });
}

absl::Status ModelRunner::TakePaths(const batching::RankPlan& plan, const TensorView& topk_idx, Started* step) {
  ASSIGN_OR_RETURN(const TensorView on_host, OnHost(&paths_on_host_, topk_idx, step->deadline));
  const int64_t num_layers = topk_idx.dim(0), num_rows = topk_idx.dim(1), top_k = topk_idx.dim(2);
  int64_t row = 0;  // as BuildBatch has them
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const batching::StepItem& item = plan.items[i];
    const Slot& slot = slots_.slot(item.slot);
    if (slot.broken) continue;
    const int32_t from = slot.sampling.expert_paths_from;
    std::vector<int16_t>& paths = step->result.items[i].expert_paths;
    for (int32_t p = item.start_pos; p < item.start_pos + item.num_query; ++p, ++row) {
      if (from < 0 || p < from) continue;
      for (int64_t l = 0; l < num_layers; ++l) {
        const int32_t* const chosen = on_host.data<int32_t>() + (l * num_rows + row) * top_k;
        for (int64_t k = 0; k < top_k; ++k) paths.push_back(static_cast<int16_t>(chosen[k]));
      }
    }
  }
  return absl::OkStatus();
}

void ModelRunner::Finalize(const batching::RankPlan& plan, batching::RankResult* result) {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const batching::StepItem& item = plan.items[i];
    batching::ItemResult& outcome = result->items[i];
    if (slots_.slot(item.slot).broken) outcome.status = batching::ItemStatus::kNonFinite;
    if (outcome.status != batching::ItemStatus::kOk) {
      outcome.tokens.clear();
      outcome.logprobs.clear();
      outcome.expert_paths.clear();
      slots_.Break(item.slot);
    }
    slots_.Advance(item);
    if (outcome.status == batching::ItemStatus::kOk && item.sample) slots_.Append(item.slot, outcome.tokens.front());
  }
}

}  // namespace switchyard::model
