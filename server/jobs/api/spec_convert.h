// What a user asks for, as a message and as plain values.
//
// Here it is only what a message can say wrong by itself: a name of an enum that this server does not know, a field
// that it does not know.  What the numbers may be is job_spec.h's, what the files are is spec_check.h's.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "scheduler/jobs/job_spec.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::server {

inline constexpr size_t kMaxSpecBytes = size_t{1} << 20;

// What is unset has the struct's default; labels come by name.  INVALID_ARGUMENT naming field and value.
absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& message);
// The same bytes exactly for the same spec.
std::string EncodeSpec(const jobs::JobSpec& spec);

// INVALID_ARGUMENT "spec.optimizer: field 77 is not known to this server" where `message`, or a message in it, has one.
absl::Status CheckNoUnknownFields(const google::protobuf::Message& message);

}  // namespace switchyard::server
