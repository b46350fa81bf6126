// Requests about training jobs as plain values; every problem is an INVALID_ARGUMENT that names field, limit and value.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/jobs/data_preparer.h"
#include "server/jobs/job_book.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::server {

// As rpc::ParseRaw; a field that this server does not know is an error, too.
absl::Status ParseTraining(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);

struct SubmitArgs {
  std::string request_id;
  jobs::JobSpec spec;  // valid (Validate)
};
absl::StatusOr<SubmitArgs> FromProto(const v1::SubmitJobRequest& message);
absl::StatusOr<JobFilter> FromProto(const v1::ListJobsRequest& message);
absl::StatusOr<PackRequest> FromProto(const v1::PackDataRequest& message);
struct WatchArgs {
  std::string id;
  absl::Duration min_interval;
};
absl::StatusOr<WatchArgs> FromProto(const v1::WatchJobRequest& message);
absl::Status CheckJobId(const std::string& id);

// As many of the page as an answer of some 2 MB holds, one at least.
v1::ListJobsResponse ToProto(const JobPage& page);

}  // namespace switchyard::server
