// Jobs and what is told of them, as messages and as plain values.
#pragma once

#include "absl/status/statusor.h"
#include "server/jobs/job.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::server {

v1::JobState ToProto(jobs::JobState state);
// INVALID_ARGUMENT: none, or one that this server does not know.  `field` is for the message.
absl::StatusOr<jobs::JobState> FromProto(v1::JobState state, absl::string_view field);

// All that a user may see.
v1::Job ToProto(const Job& job);
// A job that ToProto made; what is for the server alone, or not kept, has its default.
absl::StatusOr<Job> FromProto(const v1::Job& message);

}  // namespace switchyard::server
