// Forks of jobs: the spec of a fork, which is the parent's with changes, and what the fork goes on from.  Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/field_mask.pb.h"
#include "server/jobs/job.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::server {

inline constexpr int64_t kMaxSkippedBatches = int64_t{1} << 30;
inline constexpr int kMaxMaskPaths = 100;

// What a user asks for, besides the changes of the spec.
struct ForkRequest {
  std::string request_id = {};       // empty: not given
  std::optional<int64_t> step = {};  // unset: the newest checkpoint's
  int64_t skip_batches = 0;
  std::string digest = {};  // of the whole request but its id; the same for equal requests
};

// INVALID_ARGUMENT (BAD_FIELD, "mask") for more than kMaxMaskPaths paths, or one that names no field of a spec.
absl::Status CheckForkMask(const google::protobuf::FieldMask& mask);

// The parent's spec with the changes that `mask` names; an empty mask names all fields that `changes` has set.
// INVALID_ARGUMENT (BAD_FIELD): what FromProto and Validate refuse in a submitted spec, or another model or precision,
// which the parent's checkpoint does not fit; names the field, the parent's value and the wanted one.
absl::StatusOr<jobs::JobSpec> ForkedSpec(const jobs::JobSpec& parent, const v1::JobSpec& changes,
                                         const google::protobuf::FieldMask& mask);

// INVALID_ARGUMENT (BAD_FIELD, "spec.steps") unless the job has steps to do after this one.
absl::Status CheckStepsLeft(const jobs::JobSpec& spec, int64_t step);

// INVALID_ARGUMENT (BAD_FIELD, "spec.epochs") for a spec of epochs that has no steps to do after this one, or whose
// steps would not be the parent's: workers count epochs from the job's first sequence.
absl::Status CheckEpochs(const Job& parent, const jobs::JobSpec& spec, int64_t step, int64_t skip_batches);

// A fork of the checkpoint from which its parent itself was forked begins where that one did in the same data.
jobs::ForkOrigin ForkOriginOf(const Job& parent, const jobs::JobSpec& spec, int64_t step, int64_t skip_batches);

// "forked from job-1 at step 20; its data begin at their first sequence"
std::string DescribeFork(const jobs::ForkOrigin& origin);

// What a user may do after a loss that was not finite once `done` steps were done, as an end of a sentence: the command
// that forks, at half the learning rate, the first of `checkpoints` that has a step before `done` and before the last
// one.  (The weights after step `done` gave that loss, whatever the rate of the next step.)  Says so if there is none;
// "" if there are no checkpoints at all.
std::string WayOutOfNotFinite(const Job& job, int64_t done, const std::vector<int64_t>& checkpoints);

}  // namespace switchyard::server
