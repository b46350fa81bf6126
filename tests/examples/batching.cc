// The scheduler's whole loop without a worker: submit, plan, (compute), commit, events.  No clock, no thread.
#include <iostream>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/batching/scheduler.h"

using namespace switchyard::batching;

int main() {
  const absl::Time now = absl::UnixEpoch();  // time is an argument
  std::vector<Event> events;
  Scheduler scheduler({.max_num_seqs = 4, .prefill_chunk = 4, .block_size = 4, .max_in_flight = 1});
  scheduler.StartGroup({.epoch = 1, .num_ranks = 1, .num_blocks = 16}, now, &events);
  Request request;
  request.id = 1;
  request.prompt = {11, 12, 13, 14, 15, 16};
  request.max_tokens = 3;
  SY_CHECK_OK(scheduler.Submit(request, now));

  int tokens = 0;
  bool finished = false;
  while (const auto plan = scheduler.Plan(now, &events)) {
    std::cout << plan->DebugString();  // 4 positions of the prompt, then 2 and a token, then a token a step
    StepResult result = {.step = plan->step, .group_epoch = plan->group_epoch, .ranks = std::vector<RankResult>(1)};
    for (const StepItem& item : plan->ranks[0].items) {  // what a rank would compute
      ItemResult& answer = result.ranks[0].items.emplace_back();
      if (item.sample) answer.tokens = {100 + tokens};
    }
    SY_CHECK_OK(scheduler.Commit(result, now, &events));
    for (const Event& event : std::exchange(events, {})) {
      if (std::holds_alternative<TokenEvent>(event.what)) ++tokens;
      if (std::holds_alternative<FinishedEvent>(event.what)) finished = true;
    }
  }
  SY_CHECK_EQ(tokens, 3);
  SY_CHECK(finished && scheduler.Idle());
}
