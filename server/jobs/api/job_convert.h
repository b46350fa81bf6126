// Converts jobs and their specs between messages and plain values.
//
// It refuses only enum values and fields that this server does not know.  job_spec.h checks the numbers, spec_check.h
// the files.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "server/jobs/job.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::server {

inline constexpr size_t kMaxSpecBytes = size_t{1} << 20;

// Unset fields get the struct's defaults; labels are sorted by name.  INVALID_ARGUMENT names field and value.
absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& message);
// Serialize a message, or a spec; equal ones give equal bytes.
std::string EncodeAlike(const google::protobuf::Message& message);
std::string EncodeSpec(const jobs::JobSpec& spec);
// Returns INVALID_ARGUMENT "spec.optimizer: field 77 is not known to this server" if `message`, or a message in it, has
// such a field.
absl::Status CheckNoUnknownFields(const google::protobuf::Message& message);

v1::JobState ToProto(jobs::JobState state);
// INVALID_ARGUMENT: unset, or unknown to this server.  `field`: the field's name for the error.
absl::StatusOr<jobs::JobState> FromProto(v1::JobState state, absl::string_view field);

// Converts all fields that users may see.
v1::Job ToProto(const Job& job);
// Converts back what ToProto made; fields that are for the server alone, or not kept, get their defaults.
absl::StatusOr<Job> FromProto(const v1::Job& message);

}  // namespace switchyard::server
