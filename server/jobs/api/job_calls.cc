#include "server/jobs/api/job_calls.h"

#include <algorithm>
#include <iterator>

#include "proto/support/errors.h"
#include "server/jobs/run/job_runs.h"

namespace switchyard::server {

void PostFor(UnaryCall* call, JobLoop* jobs, JobLoop::Task task) {
  if (!jobs->Post(std::move(task))) call->Fail(ServerStopsError());
}

absl::Status WithReasonOfFiles(const absl::Status& status) {
  if (rpc::ReasonOf(status) != v1::ERROR_REASON_UNSPECIFIED) return status;
  constexpr absl::StatusCode kOfFiles[] = {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
                                           absl::StatusCode::kAlreadyExists, absl::StatusCode::kFailedPrecondition,
                                           absl::StatusCode::kPermissionDenied};
  const bool bad = std::find(std::begin(kOfFiles), std::end(kOfFiles), status.code()) != std::end(kOfFiles);
  if (!bad && !absl::IsResourceExhausted(status)) return status;
  return rpc::MakeError(status.code(), bad ? v1::BAD_FILE : v1::DISK_FULL, status.message());
}

}  // namespace switchyard::server
