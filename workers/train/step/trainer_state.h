// trainer_state.json of a checkpoint: the progress of a job, and the job's identity, so that only the same job
// continues from it.  It has no times and no attempt: the same training gives the same bytes.  Pure: texts in, texts
// out.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/jobs/job_spec.h"
#include "scheduler/jobs/token_format.h"
#include "workers/train/step/evaluation_record.h"

namespace switchyard::train {

inline constexpr char kTrainerStateName[] = "trainer_state.json";
inline constexpr int64_t kMaxTrainerStateBytes = int64_t{1} << 20;

struct NamedTokens {
  std::string name;
  jobs::TokenFileHeader header;
};

// Of a job with adapters, or with preferences: the checksum of the base's weights, which its checkpoints do not have.
inline constexpr char kBaseWeights[] = "base_weights";

// The settings that must be equal for training to continue, by name, as text.
using JobShape = std::map<std::string, std::string>;

// config_text: of config.json.  Leaves out what does not change the training: workers, checkpoints, evaluation, how
// ranks communicate, limits and labels.
JobShape ShapeOf(const jobs::JobSpec& spec, absl::string_view config_text, absl::Span<const NamedTokens> data);
// FailedPrecondition that lists what differs, "steps: was 10, is 20; …".
absl::Status CompareShapes(const JobShape& was, const JobShape& is);
// The part of a shape that a fork must have in common with its parent: what gives the state its form (model, data type,
// frozen parameters, adapters) and, unless it has other data, what its place in the data means.
JobShape FixedByFork(const JobShape& shape, bool other_data);

struct TrainerState {
  int64_t step = 0;                   // steps done
  int64_t tokens = 0;                 // trained so far
  int64_t sample = 0;                 // of the data source: the next one
  int32_t packing = 1;                // replicas of every expert (expert_packer.h); the decisions are in packing.log
  int64_t skipped = 0;                // those of the steps without a target, which the optimizer did not count
  EvaluationRecord evaluations = {};  // of steps before `step`
  JobShape shape = {};
};

std::string EncodeTrainerState(const TrainerState& state);
// InvalidArgument for another text; FailedPrecondition "version V, this program reads 1".
absl::StatusOr<TrainerState> DecodeTrainerState(absl::string_view text);

}  // namespace switchyard::train
