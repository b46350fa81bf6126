// trainer_state.json of a checkpoint: how far a job is, and of what job it is, so that only that one goes on from it.
// It has no times and no attempt: the same training gives the same bytes.  Pure: texts in, texts out.
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

namespace switchyard::train {

inline constexpr char kTrainerStateName[] = "trainer_state.json";
inline constexpr int64_t kMaxTrainerStateBytes = int64_t{1} << 20;

struct NamedTokens {
  std::string name;
  jobs::TokenFileHeader header;
};

// What has to be the same for training to go on, by name, as text.
using JobShape = std::map<std::string, std::string>;

// config_text: of config.json.  Leaves out what does not change the training: workers, checkpoints, evaluation, how
// ranks communicate, limits and labels.
JobShape ShapeOf(const jobs::JobSpec& spec, absl::string_view config_text, absl::Span<const NamedTokens> data);
// FailedPrecondition that lists what differs, "steps: was 10, is 20; …".
absl::Status CompareShapes(const JobShape& was, const JobShape& is);

struct TrainerState {
  int64_t step = 0;     // steps done
  int64_t tokens = 0;   // trained so far
  int64_t sample = 0;   // of the data source: what comes next
  int32_t packing = 1;  // replicas of every expert (expert_packer.h); how it came to that is in packing.log
  int64_t skipped = 0;  // of those steps: that had no target, so that the optimizer has not seen them
  JobShape shape = {};
};

std::string EncodeTrainerState(const TrainerState& state);
// InvalidArgument for what is none; FailedPrecondition "version V, this program reads 1".
absl::StatusOr<TrainerState> DecodeTrainerState(absl::string_view text);

}  // namespace switchyard::train
