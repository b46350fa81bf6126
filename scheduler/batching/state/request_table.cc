#include "scheduler/batching/state/request_table.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::batching {
namespace {

constexpr absl::Duration kLeastRetry = absl::Milliseconds(50);
constexpr absl::Duration kMostRetry = absl::Seconds(10);

}  // namespace

const std::vector<Sequence*>& RequestTable::Add(const Request& request, const PrefixRoot& root, int32_t block_size,
                                                absl::Time now) {
  State& state = requests_[request.id];
  state.deadline = request.deadline;
  state.num_unfinished = request.num_choices;
  if (request.deadline != absl::InfiniteFuture()) deadlines_.insert({request.deadline, request.id});
  PrefixChain chain(root, block_size);  // once: prompts may be long, and choices many
  chain.Extend(request.prompt);
  for (int32_t choice = 0; choice < request.num_choices; ++choice) {
    SequenceSpec spec{
        .request = request.id,
        .choice = choice,
        .arrival = next_arrival_++,
        .prompt = request.prompt,
        .sampling = request.sampling,
        .max_tokens = request.max_tokens,
        .chain = chain,
        .constraint = request.constraint,
        .end_ids = request.end_ids,
    };
    spec.sampling.constrained = request.constraint != nullptr;
    spec.sampling.choice = static_cast<uint32_t>(choice);
    if (choice > 0) {  // choice 0 reports what is asked of the prompt: it is the same
      spec.sampling.num_prompt_logprobs = -1;
      if (spec.sampling.expert_paths_from >= 0)
        spec.sampling.expert_paths_from = static_cast<int32_t>(spec.prompt.size());
    }
    auto sequence = std::make_unique<Sequence>(std::move(spec), now);
    state.choices.push_back(sequence.get());
    const Sequence* key = sequence.get();
    sequences_.emplace(key, std::move(sequence));
  }
  return state.choices;
}

std::vector<Sequence*> RequestTable::Choices(RequestId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? std::vector<Sequence*>() : found->second.choices;
}

void RequestTable::Finish(const Sequence& sequence, absl::Time now) {
  const auto found = requests_.find(sequence.request());
  SY_CHECK(found != requests_.end());
  State& state = found->second;
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

void RequestTable::DestroyFinished() {
  absl::erase_if(sequences_, [](const auto& entry) { return entry.first->state() == SequenceState::kFinished; });
}

std::optional<RequestId> RequestTable::PastDeadline(absl::Time now) const {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return std::nullopt;
  return deadlines_.begin()->second;
}

absl::Time RequestTable::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

absl::Duration RequestTable::RetryAfter() const { return std::clamp(mean_finish_interval_, kLeastRetry, kMostRetry); }

}  // namespace switchyard::batching
