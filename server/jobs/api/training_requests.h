// Converts requests about training jobs to plain values.  Every problem is an INVALID_ARGUMENT that names field, limit
// and value.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/jobs/data_preparer.h"
#include "server/jobs/fork/fork_spec.h"
#include "server/jobs/job_book.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::server {

// Like rpc::ParseRaw, but a field that this server does not know is also an error.
absl::Status ParseTraining(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);

struct SubmitArgs {
  std::string request_id;
  jobs::JobSpec spec;  // valid (Validate)
};
absl::StatusOr<SubmitArgs> FromProto(const v1::SubmitJobRequest& message);
struct ForkArgs {
  std::string id;  // the parent
  ForkRequest request;
  v1::JobSpec changes;
  google::protobuf::FieldMask mask;  // valid (CheckForkMask)
};
absl::StatusOr<ForkArgs> FromProto(const v1::ForkJobRequest& message);
absl::StatusOr<JobFilter> FromProto(const v1::ListJobsRequest& message);
absl::StatusOr<PackRequest> FromProto(const v1::PackDataRequest& message);
struct WatchArgs {
  std::string id;
  absl::Duration min_interval;
};
absl::StatusOr<WatchArgs> FromProto(const v1::WatchJobRequest& message);
absl::Status CheckJobId(const std::string& id);

// Converts as many of the page's jobs as fit an answer of about 2 MB, at least one.
v1::ListJobsResponse ToProto(const JobPage& page);

}  // namespace switchyard::server
