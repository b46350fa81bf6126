// Jobs and their specs as messages and as plain values.
//
// A conversion refuses only what a message can say wrong by itself: a value of an enum or a field that this server does
// not know.  job_spec.h checks the numbers, spec_check.h the files.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "server/jobs/job.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::server {

inline constexpr size_t kMaxSpecBytes = size_t{1} << 20;

// What is unset has the struct's default; labels come by name.  INVALID_ARGUMENT naming field and value.
absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& message);
// The same bytes exactly for the same spec.
std::string EncodeSpec(const jobs::JobSpec& spec);
// INVALID_ARGUMENT "spec.optimizer: field 77 is not known to this server" where `message`, or a message in it, has one.
absl::Status CheckNoUnknownFields(const google::protobuf::Message& message);

v1::JobState ToProto(jobs::JobState state);
// INVALID_ARGUMENT: none, or one that this server does not know.  `field` is for the message.
absl::StatusOr<jobs::JobState> FromProto(v1::JobState state, absl::string_view field);

// All that a user may see.
v1::Job ToProto(const Job& job);
// A job that ToProto made; what is for the server alone, or not kept, has its default.
absl::StatusOr<Job> FromProto(const v1::Job& message);

}  // namespace switchyard::server
