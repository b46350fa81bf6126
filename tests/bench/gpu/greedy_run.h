// Greedy generation of a fixed batch by one ModelRunner, step by step, with what each step took.
//
// Prompts are filled in first, in steps of as many whole prompts as fit; then every sequence decodes in every step.
// Owns the runner.  Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/gpu/device_moment_cuda.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/runner/model_runner.h"
#include "workers/moe/dispatch/expert_layout.h"

namespace switchyard {

struct GreedyOptions {
  int32_t max_sequences = 0;
  int32_t context = 0;   // positions of a sequence
  int32_t max_rows = 0;  // of a step
  bool graphs = true;
  int in_flight = model::ModelRunner::kMaxStarted;
};

// The results of the steps that were timed.
struct StepTimes {
  int64_t steps = 0;
  double seconds = 0;          // wall time of a step, mean
  double device_seconds = 0;   // between the events around a step, mean
  double device_busy = 0;      // share of the time from the first event to the last that lies within steps
  double host_seconds = 0;     // in Start, mean
  double experts_touched = 0;  // over all layers, mean
};

class GreedyRun {
 public:
  // model: borrowed.
  static absl::StatusOr<std::unique_ptr<GreedyRun>> Create(model::Model* model, const Stream& stream,
                                                           const GreedyOptions& options);

  // Forgets what there was.  tokens()[i] becomes what is sampled after prompts[i].
  absl::StatusOr<StepTimes> Prefill(const std::vector<std::vector<int32_t>>& prompts);
  // One token more for every sequence, `steps` times.
  absl::StatusOr<StepTimes> Decode(int64_t steps);

  const std::vector<std::vector<int32_t>>& tokens() const { return tokens_; }

 private:
  struct Step {
    std::vector<int32_t> sequences;  // whose tokens come, in the order of items
    DeviceMoment begin, end;
  };

  GreedyRun(const Stream& stream, const GreedyOptions& options) : stream_(stream), options_(options) {}
  absl::Status Start(batching::RankPlan plan, std::vector<int32_t> sequences);
  absl::Status FinishOldest();
  absl::StatusOr<StepTimes> Collect(absl::Time began);

  const Stream stream_;
  const GreedyOptions options_;
  const std::unique_ptr<comm::Communicator> comm_ = comm::MakeSoloCommunicator();
  moe::ExpertLayout layout_;
  std::unique_ptr<model::ModelRunner> runner_;
  int64_t step_ = 0;
  std::vector<int32_t> lengths_;              // positions computed
  std::vector<std::vector<int32_t>> tokens_;  // sampled
  std::vector<Step> steps_;                   // since the last Collect
  size_t finished_ = 0;                       // of those
  double host_seconds_ = 0, touched_ = 0;
};

}  // namespace switchyard
