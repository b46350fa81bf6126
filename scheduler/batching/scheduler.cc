#include "scheduler/batching/scheduler.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::batching {

Scheduler::Scheduler(BatchingPolicy policy)
    : policy_(policy),
      running_(&policy_, &requests_, &waiting_),
      planner_(policy_, &requests_, &waiting_, &running_),
      committer_(policy_, &running_) {
  SY_CHECK_OK(policy_.Validate());
}

absl::Status Scheduler::Submit(Request request, absl::Time now) {
  RETURN_IF_ERROR(CheckRequest(request));
  if (request.constraint != nullptr) RETURN_IF_ERROR(CheckConstraint(request));
  const int64_t tokens = static_cast<int64_t>(request.prompt.size()) * request.num_choices;
  if (const std::string why = waiting_.WhyFull(tokens, policy_); !why.empty()) {
    ++refused_;
    if (waiting_.num_requests() < policy_.max_queue) ++refused_for_tokens_;
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", why, "; retry after ", absl::FormatDuration(RetryAfter())));
  }
  const PrefixRoot root{.salt = request.cache_salt,
                        .weights_version = running_.group().weights_version,
                        .long_rope = running_.group().IsLong(static_cast<int64_t>(request.prompt.size())),
                        .adapter = request.adapter};
  int64_t mask_work = policy_.mask_work_at_once;
  for (Sequence* sequence : requests_.Add(request, root, policy_.block_size, now)) {
    waiting_.Push(sequence);
    if (sequence->constrained()) running_.FindMask(sequence, &mask_work);
  }
  ++submitted_;
  return absl::OkStatus();
}

absl::Status Scheduler::CheckConstraint(const Request& request) {
  grammar::Matcher matcher(request.constraint);
  const absl::StatusOr<bool> any = matcher.AnyFits();
  if (!any.ok()) return absl::FailedPreconditionError(any.status().message());
  if (*any) return absl::OkStatus();
  return absl::FailedPreconditionError("no token of the vocabulary may come first");
}

absl::Status Scheduler::CheckRequest(const Request& request) const {
  SY_CHECK_GE(request.adapter, 0);  // the server makes it of a name
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  if (request.max_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens=", request.max_tokens, " must be at least 1"));
  }
  if (request.num_choices < 1 || request.num_choices > policy_.max_choices) {
    return absl::InvalidArgumentError(
        absl::StrCat("n=", request.num_choices, " must be between 1 and ", policy_.max_choices));
  }
  if (request.prompt.size() + 1 > static_cast<size_t>(max_context())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", request.prompt.size(), " tokens; with one output it must fit the context of ",
                     max_context(), " tokens",
                     max_context() < policy_.max_model_len
                         ? absl::StrCat(" (the KV cache of a worker holds no more; the model would take ",
                                        policy_.max_model_len, ")")
                         : std::string()));
  }
  if (requests_.Contains(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat("request ", request.id, " has not finished"));
  }
  return absl::OkStatus();
}

bool Scheduler::Cancel(RequestId id, int32_t choice, FinishReason reason, absl::Time now, std::vector<Event>* events) {
  const std::vector<Sequence*> choices = requests_.Choices(id);
  bool any = false;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == nullptr || (choice != kAllChoices && choice != static_cast<int32_t>(i))) continue;
    running_.Finish(choices[i], reason, now, events);
    any = true;
  }
  return any;
}

std::optional<StepPlan> Scheduler::Plan(absl::Time now, std::vector<Event>* events) {
  while (const std::optional<RequestId> late = requests_.PastDeadline(now)) {
    SY_CHECK(Cancel(*late, kAllChoices, FinishReason::kDeadline, now, events));
  }
  if (running_.ranks().empty() || committer_.num_in_flight() >= policy_.max_in_flight) return std::nullopt;
  std::optional<PlannedStep> step = planner_.Plan(now);
  if (!step) return std::nullopt;
  committer_.Expect(step->plan.step, std::move(step->items));
  return std::move(step->plan);
}

absl::Status Scheduler::Commit(const StepResult& result, absl::Time now, std::vector<Event>* events) {
  return committer_.Commit(result, now, events);
}

void Scheduler::SetMask(MaskAnswer answer, absl::Time now, std::vector<Event>* events) {
  const std::vector<Sequence*> choices = requests_.Choices(answer.key.request);
  if (answer.key.choice < 0 || static_cast<size_t>(answer.key.choice) >= choices.size()) return;
  Sequence* sequence = choices[static_cast<size_t>(answer.key.choice)];
  if (sequence == nullptr || sequence->mask() != nullptr || sequence->num_outputs() != answer.key.output) return;
  const FinishReason reason = sequence->SetMask(std::move(answer.mask), answer.work_left);
  if (reason != FinishReason::kNone) running_.Finish(sequence, reason, now, events);
}

void Scheduler::LoseGroup(bool fail_waiting, absl::Time now, std::vector<Event>* events) {
  committer_.Forget();
  running_.LoseGroup(fail_waiting, now, events);
}

void Scheduler::StartGroup(const GroupShape& group, absl::Time now, std::vector<Event>* events) {
  committer_.Forget();
  running_.StartGroup(group, now, events);
  planner_.StartGroup();
}

SchedulerStats Scheduler::Stats() const {
  SchedulerStats stats = running_.Stats();
  stats.in_flight = committer_.num_in_flight();
  stats.submitted = submitted_;
  stats.refused = refused_;
  stats.refused_for_tokens = refused_for_tokens_;
  stats.rows_given = planner_.rows_given();
  stats.generated_tokens = committer_.generated_tokens();
  return stats;
}

}  // namespace switchyard::batching
