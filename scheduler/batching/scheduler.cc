#include "scheduler/batching/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

constexpr absl::Duration kLeastRetry = absl::Milliseconds(50);
constexpr absl::Duration kMostRetry = absl::Seconds(10);

}  // namespace

double SchedulerStats::KvUsage() const {
  int64_t used = 0, total = 0;
  for (const RankStats& rank : ranks) {
    used += rank.blocks_used;
    total += rank.blocks_total;
  }
  return total == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(total);
}

Scheduler::Scheduler(BatchingPolicy policy) : policy_(policy), max_context_(policy.max_model_len) {
  SY_CHECK_OK(policy_.Validate());
}

Scheduler::~Scheduler() = default;

absl::Status Scheduler::Submit(Request request, absl::Time now) {
  RETURN_IF_ERROR(CheckRequest(request));
  RETURN_IF_ERROR(CheckQueue(request));
  RequestState& state = requests_[request.id];
  state.deadline = request.deadline;
  if (request.deadline != absl::InfiniteFuture()) deadlines_.insert({request.deadline, request.id});
  for (int32_t choice = 0; choice < request.num_choices; ++choice) AddSequence(request, choice, now, &state);
  ++totals_.submitted;
  return absl::OkStatus();
}

absl::Status Scheduler::CheckRequest(const Request& request) const {
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  if (request.max_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens=", request.max_tokens, " must be at least 1"));
  }
  if (request.num_choices < 1 || request.num_choices > policy_.max_choices) {
    return absl::InvalidArgumentError(
        absl::StrCat("n=", request.num_choices, " must be between 1 and ", policy_.max_choices));
  }
  if (request.prompt.size() + 1 > static_cast<size_t>(max_context_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", request.prompt.size(), " tokens; with one output it must fit the context of ",
                     max_context_, " tokens",
                     max_context_ < policy_.max_model_len
                         ? absl::StrCat(" (the KV cache of a worker holds no more; the model would take ",
                                        policy_.max_model_len, ")")
                         : std::string()));
  }
  if (requests_.contains(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat("request ", request.id, " has not finished"));
  }
  return absl::OkStatus();
}

absl::Status Scheduler::CheckQueue(const Request& request) {
  if (waiting_.empty()) return absl::OkStatus();
  const int64_t tokens = static_cast<int64_t>(request.prompt.size()) * request.num_choices;
  std::string why;
  if (waiting_requests_ >= policy_.max_queue) {
    why = absl::StrCat(waiting_requests_, " requests wait, the limit is ", policy_.max_queue);
  } else if (waiting_tokens_ + tokens > policy_.max_queued_tokens) {
    why = absl::StrCat(waiting_tokens_, " tokens wait, ", tokens, " more would exceed the limit of ",
                       policy_.max_queued_tokens);
  } else {
    return absl::OkStatus();
  }
  ++totals_.refused;
  return absl::ResourceExhaustedError(
      absl::StrCat("the queue is full: ", why, "; retry after ", absl::FormatDuration(RetryAfter())));
}

void Scheduler::AddSequence(const Request& request, int32_t choice, absl::Time now, RequestState* state) {
  SequenceSpec spec{
      .request = request.id,
      .choice = choice,
      .arrival = next_arrival_++,
      .prompt = request.prompt,
      .sampling = request.sampling,
      .max_tokens = request.max_tokens,
      .root = {.salt = request.cache_salt,
               .weights_version = weights_version_,
               .adapter = request.adapter,
               .long_rope = IsLong(static_cast<int64_t>(request.prompt.size()))},
      .block_size = policy_.block_size,
  };
  spec.sampling.choice = static_cast<uint32_t>(choice);
  if (choice > 0) {  // choice 0 brings what there is to tell of the prompt: it is the same
    spec.sampling.num_prompt_logprobs = -1;
    if (spec.sampling.expert_paths_from >= 0)
      spec.sampling.expert_paths_from = static_cast<int32_t>(spec.prompt.size());
  }
  auto sequence = std::make_unique<Sequence>(std::move(spec), now);
  state->choices.push_back(sequence.get());
  ++state->num_unfinished;
  Enqueue(sequence.get());
  const Sequence* key = sequence.get();
  sequences_.emplace(key, std::move(sequence));
}

bool Scheduler::Cancel(RequestId id, int32_t choice, FinishReason reason, absl::Time now, std::vector<Event>* events) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  const std::vector<Sequence*> choices = found->second.choices;  // a copy: the last to finish destroys the original
  bool any = false;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == nullptr || (choice != kAllChoices && choice != static_cast<int32_t>(i))) continue;
    FinishSequence(choices[i], reason, now, events);
    any = true;
  }
  return any;
}

void Scheduler::ExpireDeadlines(absl::Time now, std::vector<Event>* events) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    SY_CHECK(Cancel(deadlines_.begin()->second, kAllChoices, FinishReason::kDeadline, now, events));
  }
}

void Scheduler::FinishSequence(Sequence* sequence, FinishReason reason, absl::Time now, std::vector<Event>* events) {
  if (sequence->state() == SequenceState::kWaiting) Dequeue(sequence);
  const bool was_draining = sequence->draining;
  sequence->Finish(reason, now);
  events->push_back({.request = sequence->request(),
                     .choice = sequence->choice(),
                     .what = FinishedEvent{reason, sequence->Usage(), sequence->timings()}});
  ++totals_.finished[static_cast<int>(reason)];
  ForgetChoice(*sequence, now);
  if (sequence->rank < 0) {
    sequences_.erase(sequence);
    return;
  }
  RankState& rank = ranks_[sequence->rank];
  rank.Erase(sequence);
  if (!was_draining) ++rank.num_leaving;
  ReleaseIfIdle(sequence);
}

void Scheduler::ForgetChoice(const Sequence& sequence, absl::Time now) {
  const auto found = requests_.find(sequence.request());
  SY_CHECK(found != requests_.end());
  RequestState& state = found->second;
  state.choices[sequence.choice()] = nullptr;
  if (--state.num_unfinished > 0) return;
  deadlines_.erase({state.deadline, sequence.request()});
  requests_.erase(found);
  if (last_finish_ != absl::InfinitePast()) {
    const absl::Duration interval = std::clamp(now - last_finish_, absl::ZeroDuration(), kMostRetry);
    mean_finish_interval_ = 0.8 * mean_finish_interval_ + 0.2 * interval;
  }
  last_finish_ = now;
}

void Scheduler::Enqueue(Sequence* sequence) {
  waiting_.emplace(sequence->arrival(), sequence);
  waiting_tokens_ += sequence->num_tokens();
  if (requests_[sequence->request()].num_waiting++ == 0) ++waiting_requests_;
}

void Scheduler::Dequeue(Sequence* sequence) {
  SY_CHECK_EQ(waiting_.erase(sequence->arrival()), 1u);
  waiting_tokens_ -= sequence->num_tokens();
  if (--requests_[sequence->request()].num_waiting == 0) --waiting_requests_;
}

void Scheduler::LoseGroup(bool fail_waiting, absl::Time now, std::vector<Event>* events) {
  in_flight_.clear();
  std::vector<Sequence*> lost;
  for (RankState& rank : ranks_) lost.insert(lost.end(), rank.running.begin(), rank.running.end());
  if (fail_waiting) {
    for (const auto& [arrival, sequence] : waiting_) lost.push_back(sequence);
  }
  for (RankState& rank : ranks_) totals_.evictions += rank.pool.num_evictions();
  ranks_.clear();
  absl::erase_if(sequences_, [](const auto& entry) { return entry.first->state() == SequenceState::kFinished; });
  std::sort(lost.begin(), lost.end(), [](const Sequence* a, const Sequence* b) { return a->arrival() < b->arrival(); });
  for (Sequence* sequence : lost) {
    sequence->LoseRank();
    FinishSequence(sequence, FinishReason::kUnavailable, now, events);
  }
}

void Scheduler::StartGroup(const GroupShape& group, absl::Time now, std::vector<Event>* events) {
  SY_CHECK_GE(group.num_ranks, 1);
  SY_CHECK_GE(group.num_blocks, 1);
  SY_CHECK_GT(group.epoch, group_epoch_);
  LoseGroup(/*fail_waiting=*/false, now, events);
  group_epoch_ = group.epoch;
  weights_version_ = group.weights_version;
  long_rope_above_ = group.long_rope_above;
  min_loan_rows_ = policy_.min_loan_rows >= 0 ? policy_.min_loan_rows : group.min_loan_rows;
  if (!group.may_lend) min_loan_rows_ = 0;
  expert_path_ids_ = group.expert_path_ids;
  next_step_ = 1;
  const int64_t pool_tokens = int64_t{group.num_blocks} * policy_.block_size;
  max_context_ = static_cast<int32_t>(std::min<int64_t>(policy_.max_model_len, pool_tokens));
  ranks_.reserve(group.num_ranks);
  for (int32_t r = 0; r < group.num_ranks; ++r) {
    ranks_.emplace_back(policy_.max_num_seqs, group.num_blocks, policy_.block_size);
  }
  std::vector<Sequence*> misfits;
  for (const auto& [arrival, sequence] : waiting_) {
    if (sequence->WantsMore(max_context_)) {
      sequence->SetGroup(weights_version_, IsLong(sequence->num_prompt_tokens()));
    } else {
      misfits.push_back(sequence);
    }
  }
  for (Sequence* sequence : misfits) FinishSequence(sequence, FinishReason::kUnavailable, now, events);
}

absl::Time Scheduler::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

absl::Duration Scheduler::RetryAfter() const { return std::clamp(mean_finish_interval_, kLeastRetry, kMostRetry); }

SchedulerStats Scheduler::Stats() const {
  SchedulerStats stats = totals_;
  stats.waiting = static_cast<int32_t>(waiting_.size());
  stats.waiting_requests = waiting_requests_;
  stats.waiting_tokens = waiting_tokens_;
  stats.in_flight = static_cast<int32_t>(in_flight_.size());
  for (const RankState& rank : ranks_) {
    stats.running += static_cast<int32_t>(rank.running.size());
    stats.evictions += rank.pool.num_evictions();
    stats.ranks.push_back({.running = static_cast<int32_t>(rank.running.size()),
                           .blocks_total = rank.pool.num_blocks(),
                           .blocks_used = rank.pool.num_used(),
                           .blocks_cached = rank.pool.num_cached()});
  }
  return stats;
}

void Scheduler::CheckInvariants() const {
  std::vector<std::vector<int32_t>> references;
  std::vector<size_t> num_slots(ranks_.size(), 0);
  for (const RankState& rank : ranks_) references.emplace_back(rank.pool.num_blocks(), 0);
  int64_t waiting_tokens = 0;
  size_t num_waiting = 0;
  for (const auto& [key, sequence] : sequences_) {
    if (sequence->state() == SequenceState::kWaiting) {
      ++num_waiting;
      waiting_tokens += sequence->num_tokens();
      SY_CHECK(waiting_.contains(sequence->arrival()));
      SY_CHECK(sequence->block_table.empty());
      continue;
    }
    SY_CHECK(sequence->state() == SequenceState::kRunning || sequence->num_in_flight() > 0);
    ++num_slots[sequence->rank];
    SY_CHECK(!ranks_[sequence->rank].free_slots.contains(sequence->slot));
    for (const BlockId block : sequence->block_table) ++references[sequence->rank][block];
  }
  SY_CHECK_EQ(num_waiting, waiting_.size());
  SY_CHECK_EQ(waiting_tokens, waiting_tokens_);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const BlockPool& pool = ranks_[r].pool;
    pool.CheckInvariants();
    SY_CHECK_EQ(num_slots[r] + ranks_[r].free_slots.size(), static_cast<size_t>(policy_.max_num_seqs));
    SY_CHECK_EQ(num_slots[r], ranks_[r].running.size() + ranks_[r].num_leaving -
                                  std::count_if(ranks_[r].running.begin(), ranks_[r].running.end(),
                                                [](const Sequence* s) { return s->draining; }));
    for (BlockId b = 0; b < pool.num_blocks(); ++b) SY_CHECK_EQ(pool.references(b), references[r][b]);
  }
}

}  // namespace switchyard
