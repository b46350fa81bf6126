#include "server/engine/step_loop.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/env.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::server {
namespace {

// Returns the mean rank's rows over the busiest rank's rows, each summed over layers, since ranks wait for each other
// in every layer (but where each computes its own rows); 0 if unknown.
double Balancedness(absl::Span<const batching::RankResult> ranks) {
  double mean = 0, busiest = 0;
  for (size_t layer = 0; layer < ranks[0].layer_rows.size(); ++layer) {
    double sum = 0, most = 0;
    for (const batching::RankResult& rank : ranks) {
      if (layer >= rank.layer_rows.size()) return 0;
      const auto rows = static_cast<double>(std::max<int64_t>(rank.layer_rows[layer], 0));
      sum += rows;
      most = std::max(most, rows);
    }
    mean += sum / static_cast<double>(ranks.size());
    busiest += most;
  }
  return busiest > 0 ? mean / busiest : 0;
}

// A faulty worker's number would make a counter fall, which ends the server, or a sum overflow.
int64_t Bounded(int64_t rows) { return std::clamp<int64_t>(rows, 0, int64_t{1} << 40); }

// SY_DUMP_STEP: writes a file for each step's plan and one for its result.
template <class PlanOrResult>
void Dump(const std::string& directory, const char* what, const PlanOrResult& step) {
  if (directory.empty()) return;
  std::ofstream(absl::StrCat(directory, "/epoch-", step.group_epoch, "-step-", step.step, "-", what, ".txt"))
      << step.DebugString();
}

}  // namespace

StepLoop::StepLoop(const Parts& parts, ServerMetrics* metrics, const EngineHooks* hooks)
    : parts_(parts), metrics_(metrics), hooks_(hooks), dump_directory_(EnvString("SY_DUMP_STEP")) {}

void StepLoop::Advance(absl::Time now) {
  std::vector<batching::Event> events;
  PlanAll(now, &events);
  parts_.requests->Publish(std::move(events), now);
}

absl::Time StepLoop::NextDeadline() const {
  const batching::Scheduler* scheduler = parts_.group->scheduler();
  return std::min({delay_until_, slice_until_, scheduler ? scheduler->NextDeadline() : absl::InfiniteFuture()});
}

void StepLoop::OnMask(batching::MaskAnswer answer, absl::Duration took) {
  const absl::Time now = MonotonicNow();
  metrics_->constraint_mask_seconds->Observe(absl::ToDoubleSeconds(took));
  std::vector<batching::Event> events;
  parts_.group->scheduler()->SetMask(std::move(answer), now, &events);
  SendMasks();
  parts_.requests->Publish(std::move(events), now);
}

void StepLoop::SendMasks() {
  batching::Scheduler* const scheduler = parts_.group->scheduler();
  for (batching::MaskRequest& request : scheduler->TakeMaskRequests()) parts_.masks->Start(std::move(request));
  if (!parts_.group->ready()) return;
  while (const std::optional<batching::StepMasks> masks = scheduler->NextMasks())
    parts_.group->workers().SendMasks(*masks);
}

void StepLoop::PlanAll(absl::Time now, std::vector<batching::Event>* events) {
  batching::Scheduler* const scheduler = parts_.group->scheduler();
  if (scheduler == nullptr) return;
  SendMasks();  // requests may have come or gone
  delay_until_ = slice_until_ = absl::InfiniteFuture();
  // Plan ends requests that are past their deadline.
  const bool may_wait = parts_.group->ready() && now < scheduler->NextDeadline();
  if (may_wait && (Gathering(now) || WaitsForSlice(now))) return;
  while (parts_.group->ready()) {
    std::optional<batching::StepPlan> plan = scheduler->Plan(now, events);
    if (!plan) break;
    sent_[plan->step] = now;
    parts_.slices->End(now);
    plan->layer_costs = parts_.experts->costs();
    parts_.choices->Choose(parts_.experts->expert_cost(), &*plan, now);
    Dump(dump_directory_, "plan", *plan);
    parts_.group->workers().Execute(*plan, now);
  }
  // Even without a group, Plan ends requests that are past their deadline.
  if (!parts_.group->ready()) (void)scheduler->Plan(now, events);
  SendMasks();  // of new plans, and of steps that waited for the mask of a request that Plan has ended
  if (parts_.group->ready() && sent_.empty()) {
    parts_.slices->Idle();
    GiveSlice(now);
  }
}

// A burst's first step waits a little for the rest of it, until `delay_until_`.
bool StepLoop::Gathering(absl::Time now) {
  const batching::Scheduler& scheduler = *parts_.group->scheduler();
  const batching::SchedulerStats stats = sent_.empty() ? scheduler.Stats() : batching::SchedulerStats();
  if (stats.running == 0 && stats.waiting > 0) {
    const int64_t step_tokens = int64_t{scheduler.policy().max_batched_tokens} * stats.ranks.size();
    const absl::Time opens = batching_delay_.OpensAt(stats.waiting_tokens, step_tokens, now);
    if (now < opens) {
      delay_until_ = opens;
      return true;
    }
  }
  batching_delay_.Close();
  return false;
}

// --train_share: steps wait until those under way are done, and then for a slice, until `slice_until_`.
bool StepLoop::WaitsForSlice(absl::Time now) {
  if (!parts_.slices->Owes(now)) return false;
  if (!sent_.empty()) return true;
  if (const batching::SchedulerStats stats = parts_.group->scheduler()->Stats(); stats.running + stats.waiting == 0)
    return false;
  slice_until_ = parts_.slices->PayOwed(now);
  GiveSlice(now);
  return true;
}

// REQUIRES: no step is under way.
void StepLoop::GiveSlice(absl::Time now) {
  const absl::Duration slice = parts_.slices->Next(now);
  if (slice > absl::ZeroDuration()) parts_.group->workers().GiveSlice(slice);
}

void StepLoop::OnGroupUp(int64_t epoch, int world, int32_t num_kv_blocks, const fleet::WorkerInfo& first) {
  const absl::Time now = MonotonicNow();
  std::vector<batching::Event> events;
  parts_.group->Up(epoch, world, num_kv_blocks, first, now, &events);
  parts_.experts->GroupUp(world, first);
  parts_.choices->GroupUp(world, first);
  parts_.load->Update();
  hooks_->on_ready(!parts_.requests->draining());
  parts_.requests->Publish(std::move(events), now);
}

void StepLoop::OnGroupDown(const std::string& reason) {
  const absl::Time now = MonotonicNow();
  parts_.group->Down(reason, now);
  parts_.requests->NoteGroup();
  sent_.clear();
  parts_.slices->End(now);
  parts_.experts->GroupDown();
  parts_.choices->GroupDown();
  parts_.profiles->Fail(WorkersLost(absl::StrCat("the group was lost: ", reason)));
  metrics_->groups_lost->Increment();
  hooks_->on_ready(false);
  std::vector<batching::Event> events;
  if (batching::Scheduler* scheduler = parts_.group->scheduler())
    scheduler->LoseGroup(/*fail_waiting=*/false, now, &events);
  parts_.requests->Publish(std::move(events), now);
  parts_.load->Update();
}

void StepLoop::OnStepDone(const batching::StepResult& result) {
  const absl::Time now = MonotonicNow();
  std::vector<batching::Event> events;
  if (const absl::Status status = parts_.group->scheduler()->Commit(result, now, &events); !status.ok()) {
    parts_.group->workers().Break(absl::StrCat("step ", result.step, ": ", status.message()), now);
    return;
  }
  SendMasks();  // first of all: workers may be about to sample
  if (const auto it = sent_.find(result.step); it != sent_.end()) parts_.requests->NoteStep(it->second, result);
  ObserveStep(result, now);
  const bool whole = parts_.choices->StepDone(result, now);
  parts_.experts->StepDone(result, whole);
  Dump(dump_directory_, "result", result);
  // Plans are sent first, so that workers do not wait for detokenization.
  PlanAll(now, &events);
  parts_.requests->Publish(std::move(events), now);
  metrics_->publish_seconds->Observe(absl::ToDoubleSeconds(MonotonicNow() - now));
}

void StepLoop::ObserveStep(const batching::StepResult& result, absl::Time now) {
  int64_t rows = 0, sent = 0;
  bool prompts = false;
  for (const batching::RankResult& rank : result.ranks) {
    rows += Bounded(rank.rows);
    sent += Bounded(rank.rows_sent);
    prompts = prompts || popularity::TotalOf(rank.expert_counts) > popularity::TotalOf(rank.decode_expert_counts);
  }
  metrics_->iteration_tokens->Observe(static_cast<double>(rows));
  using Timings = batching::StepTimings;
  for (const auto& [part, histogram] : {std::pair(&Timings::expert_seconds, metrics_->expert_seconds),
                                        std::pair(&Timings::exchange_seconds, metrics_->exchange_seconds),
                                        std::pair(&Timings::gather_seconds, metrics_->gather_seconds),
                                        std::pair(&Timings::decide_seconds, metrics_->decide_seconds)}) {
    double slowest = 0;
    for (const batching::RankResult& rank : result.ranks) slowest = std::max(slowest, rank.timings.*part);
    histogram->Observe(slowest);
  }
  double waited = 0;
  for (const batching::RankResult& rank : result.ranks) waited = std::max(waited, rank.timings.mask_seconds);
  if (waited > 0) metrics_->constraint_wait_seconds->Observe(waited);
  metrics_->fine_tuned_layers->Increment(static_cast<double>(Bounded(result.ranks[0].fine_tuned_layers)));  // as all's
  metrics_->moe_tokens_exchanged->Increment(static_cast<double>(sent));
  if (const double ratio = Balancedness(result.ranks); ratio > 0) {
    metrics_->moe_balancedness(prompts ? popularity::Phase::kPrefill : popularity::Phase::kDecode).Observe(ratio);
  }
  if (const auto it = sent_.find(result.step); it != sent_.end()) {
    metrics_->step_seconds->Observe(absl::ToDoubleSeconds(now - it->second));
    parts_.slices->StepDone(it->second, now);
    batching_delay_.Observe(rows, now - it->second);
    sent_.erase(it);
  }
}

void StepLoop::OnFenced(const fleet::WorkerInfo& info) {
  parts_.group->NoteFenced();
  if (info.local_index < 0) return;
  metrics_->workers_fenced->Increment();
  hooks_->on_fenced(info.local_index, info.pid);
}

}  // namespace switchyard::server
