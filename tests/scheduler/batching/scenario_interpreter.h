// The small language of tests/scenarios/*.txt: transcripts of calls to the scheduler and of what they answered.
//
// A line that starts in column 0 is a call; the indented lines below it are the whole expected answer.  `#` comments.
//   policy block_size=4 max_num_seqs=2 …           first; fields of BatchingPolicy
//   group ranks=2 blocks=8 [weights= numerics= …]  StartGroup, with the next epoch; further ones: lost_from_outside=1
//                                                  long_rope_above= min_rebalance_rows=
//   at 15                                          the clock, in milliseconds; starts at 0
//   submit 1 prompt=1,2,3 max_tokens=4 [n= stop=7,8 min_tokens= deadline=ms salt=a prompt_logprobs=0
//            expert_paths=0]                     an expert for each row
//   cancel 1 abort|stop [choice=0]
//   plan                                           one line per rank: rows freed, then each item; then each transfer
//   commit 11 12 nan                               tokens of the sampled items of the oldest plan, in its order
//   lose [fail_waiting=1]                          LoseGroup
//   stats running waiting …                        the fields asked for
//   timings 1.0                                    intervals of a finished choice
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/batching/scheduler.h"

namespace switchyard::testing_batching {

class ScenarioInterpreter {
 public:
  // Runs one call; returns the lines of its answer, without indentation.  A call that is not understood answers
  // "error: …", which no scenario expects.
  std::vector<std::string> Call(const std::string& line);

 private:
  using Args = std::map<std::string, std::string>;

  void SetPolicy(const Args& args);
  void StartGroup(const Args& args);
  std::vector<std::string> Submit(batching::RequestId id, const Args& args);
  std::vector<std::string> Plan();
  std::vector<std::string> Commit(const std::vector<std::string>& words);
  std::vector<std::string> Stats(const std::vector<std::string>& words) const;
  std::vector<std::string> Timings(const std::string& choice) const;
  // The events since the last call, as lines.
  std::vector<std::string> TakeEvents();

  std::unique_ptr<batching::Scheduler> scheduler_;
  absl::Time now_ = absl::UnixEpoch();
  int64_t epoch_ = 0;
  std::deque<batching::StepPlan> plans_;
  std::map<std::pair<size_t, batching::SlotId>, int32_t> paths_from_;  // by rank and slot: what the last init said
  std::map<std::string, batching::SequenceTimings> timings_;
  std::vector<batching::Event> events_;
};

}  // namespace switchyard::testing_batching
