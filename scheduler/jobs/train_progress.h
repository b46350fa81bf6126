// How far a training job is, as its rank 0 reports.  Plain data; the forms on the wire are in
// proto/switchyard/v1/training.proto, whose comments say what each number is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard::jobs {

// Where the seconds of a step went, on rank 0.
struct StepSeconds {
  double total = 0, forward = 0, backward = 0;
  double experts = 0;                     // of those two: experts' products
  double all_to_all = 0, all_reduce = 0;  // waited for
  double optimizer = 0, data = 0;
  bool operator==(const StepSeconds& other) const = default;
};

// Of pairs of answers (DpoSpec).
struct PreferenceFigures {
  double margin = 0;    // mean reward of the chosen answers less that of the rejected ones
  double accuracy = 0;  // part of the pairs whose chosen answer has the higher reward
  int64_t pairs = 0;
  bool operator==(const PreferenceFigures& other) const = default;
};

// The last step that was done.
struct TrainProgress {
  int64_t step = 0;  // steps done
  double loss = 0;   // mean cross-entropy, nats a token; with preferences mean of the pairs'
  double balance_loss = 0, z_loss = 0;
  double learning_rate = 0;
  double gradient_norm = 0;  // before it was clipped
  int64_t tokens = 0;        // trained so far
  double tokens_per_second = 0;
  StepSeconds seconds;
  int64_t dropped_rows = 0;   // of the step
  int64_t dead_experts = 0;   // of the step, of all layers
  int32_t packing = 0;        // replicas of every expert; 0: an older worker's
  int32_t chunks = 0;         // into which MoE layers cut their rows; 0: an older worker's, or a skipped step
  double padding = 0;         // part of the step's sequences that no document filled
  int64_t total_steps = 0;    // of the job; 0: an older worker's
  bool skipped = false;       // the step had no target: losses and norm were not measured
  int64_t skipped_steps = 0;  // so far
  std::optional<PreferenceFigures> preferences = {};
  bool operator==(const TrainProgress& other) const = default;
};

// The loss of one evaluation set.
struct SetResult {
  std::string name = {};
  double loss = 0;  // nats a token; with preferences mean of the pairs'
  int64_t tokens = 0;
  std::optional<PreferenceFigures> preferences = {};
  bool operator==(const SetResult& other) const = default;
};

struct EvaluationResult {
  int64_t step = 0;
  double loss = 0;  // of all sets' tokens, or pairs
  int64_t tokens = 0;
  std::vector<SetResult> sets = {};  // in the spec's order; none: the spec has no names
  std::optional<PreferenceFigures> preferences = {};
  bool operator==(const EvaluationResult& other) const = default;
};

struct SavedCheckpoint {
  int64_t step = 0;
  std::string folder = {};  // relative to the checkpoint root
  int64_t bytes = 0;
  double seconds = 0;
  int64_t saved_unix_ms = 0;
  bool operator==(const SavedCheckpoint& other) const = default;
};

// An evaluation that an attempt has done, and which of the job's is the best so far.
struct EvaluationReport {
  EvaluationResult result = {};
  int64_t best_step = 0;  // 0: an older worker's report
  double best_loss = 0;
  bool operator==(const EvaluationReport& other) const = default;
};

}  // namespace switchyard::jobs
