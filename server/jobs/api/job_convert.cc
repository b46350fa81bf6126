#include "server/jobs/api/job_convert.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/unknown_field_set.h"
#include "proto/link/job_spec_codec.h"
#include "proto/link/training_assignment_codec.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

// Both enums have the same order; the message's begins with UNSPECIFIED.
constexpr int kFirstState = v1::JOB_STATE_PENDING;
static_assert(v1::JOB_STATE_RUNNING - kFirstState == static_cast<int>(jobs::JobState::kRunning));
static_assert(v1::JOB_STATE_CANCELLED - kFirstState == static_cast<int>(jobs::JobState::kCancelled));
static_assert(v1::JOB_STATE_CANCELLED - kFirstState == jobs::kNumJobStates - 1);

absl::Status CheckKnown(const google::protobuf::Message& message, const std::string& path) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (const auto& unknown = reflection.GetUnknownFields(message); !unknown.empty()) {
    const std::string number = absl::StrCat(unknown.field(0).number());
    return rpc::BadField(path.empty() ? message.GetDescriptor()->name() : path,
                         absl::StrCat("field ", number, " is not known to this server"), "known fields", number);
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string inner = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    if (!field->is_repeated()) {
      RETURN_IF_ERROR(CheckKnown(reflection.GetMessage(message, field), inner));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {  // (a map's entries, too)
      RETURN_IF_ERROR(CheckKnown(reflection.GetRepeatedMessage(message, field, i), absl::StrCat(inner, "[", i, "]")));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& message) {
  return link::FromProto(message, {.name = "server", .error = [](const link::SpecProblem& problem) {
                                     return rpc::BadField(problem.field, problem.text, problem.limit,
                                                          problem.is_text ? Quote(problem.actual) : problem.actual);
                                   }});
}

std::string EncodeAlike(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.SetSerializationDeterministic(true);  // sorts maps
  message.SerializeToCodedStream(&out);
  out.Trim();
  return bytes;
}

std::string EncodeSpec(const jobs::JobSpec& spec) { return EncodeAlike(link::ToProto(spec)); }

absl::Status CheckNoUnknownFields(const google::protobuf::Message& message) { return CheckKnown(message, ""); }

v1::JobState ToProto(jobs::JobState state) { return static_cast<v1::JobState>(static_cast<int>(state) + kFirstState); }

absl::StatusOr<jobs::JobState> FromProto(v1::JobState state, absl::string_view field) {
  const int index = static_cast<int>(state) - kFirstState;
  if (index >= 0 && index < jobs::kNumJobStates) return static_cast<jobs::JobState>(index);
  return rpc::BadField(field, absl::StrCat("value ", static_cast<int>(state), " is no state of a job"),
                       absl::StrCat("[", kFirstState, ", ", kFirstState + jobs::kNumJobStates - 1, "]"),
                       absl::StrCat(static_cast<int>(state)));
}

v1::Job ToProto(const Job& job) {
  v1::Job message;
  message.set_id(job.id);
  message.set_request_id(job.request_id);
  message.set_owner(job.owner);
  *message.mutable_spec() = link::ToProto(job.spec);
  message.set_submitted_workers(job.submitted_workers);
  message.set_state(ToProto(job.state));
  message.set_attempt(job.attempt);
  if (!job.error.ok()) *message.mutable_error() = rpc::ToRpcStatus(job.error);
  if (job.progress.has_value()) *message.mutable_progress() = link::ToProto(*job.progress);
  message.set_seconds_left(job.seconds_left);
  if (job.evaluation.has_value()) *message.mutable_evaluation() = link::ToProto(*job.evaluation);
  if (job.checkpoint.has_value()) *message.mutable_checkpoint() = link::ToProto(*job.checkpoint);
  if (job.best_evaluation.has_value()) *message.mutable_best_evaluation() = link::ToProto(*job.best_evaluation);
  if (job.best_checkpoint.has_value()) *message.mutable_best_checkpoint() = link::ToProto(*job.best_checkpoint);
  for (const StateChange& change : job.changes) {
    v1::StateChange* out = message.add_changes();
    out->set_state(ToProto(change.state));
    out->set_unix_ms(change.unix_ms);
    out->set_reason(change.reason);
  }
  message.set_created_unix_ms(job.created_unix_ms);
  message.set_started_unix_ms(job.started_unix_ms);
  message.set_ended_unix_ms(job.ended_unix_ms);
  if (job.origin.has_value()) *message.mutable_origin() = link::ToProto(*job.origin);
  message.set_note(job.note);
  message.set_prepared_bytes(job.prepared_bytes);
  message.set_prepare_bytes(job.prepare_bytes);
  return message;
}

absl::StatusOr<Job> FromProto(const v1::Job& message) {
  Job job;
  job.id = message.id();
  job.request_id = message.request_id();
  job.owner = message.owner();
  ASSIGN_OR_RETURN(job.spec, FromProto(message.spec()));
  job.submitted_workers = message.submitted_workers();
  ASSIGN_OR_RETURN(job.state, FromProto(message.state(), "state"));
  job.attempt = message.attempt();
  if (message.has_error()) job.error = rpc::FromRpcStatus(message.error());
  if (message.has_progress()) job.progress = link::FromProto(message.progress());
  if (message.has_evaluation()) job.evaluation = link::FromProto(message.evaluation());
  if (message.has_checkpoint()) job.checkpoint = link::FromProto(message.checkpoint());
  if (message.has_best_evaluation()) job.best_evaluation = link::FromProto(message.best_evaluation());
  if (message.has_best_checkpoint()) job.best_checkpoint = link::FromProto(message.best_checkpoint());
  for (const v1::StateChange& change : message.changes()) {
    ASSIGN_OR_RETURN(const jobs::JobState state, FromProto(change.state(), "changes.state"));
    job.changes.push_back({state, change.unix_ms(), change.reason()});
  }
  job.created_unix_ms = message.created_unix_ms();
  job.started_unix_ms = message.started_unix_ms();
  job.ended_unix_ms = message.ended_unix_ms();
  if (message.has_origin()) job.origin = link::FromProto(message.origin());
  return job;
}

}  // namespace switchyard::server
