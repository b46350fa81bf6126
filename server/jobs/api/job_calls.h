// Parts that several RPCs about training jobs share: the way to the jobs' thread, answers, errors of files.
// Thread-safe.  Does not do: conversions (training_requests.h).
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/unary_call.h"
#include "server/jobs/api/job_convert.h"
#include "server/jobs/job_book.h"
#include "server/jobs/job_loop.h"

namespace switchyard::server {

// Runs `task` on the jobs' thread; it must lead to the end of the call.  Fails the call if the loop has stopped.
void PostFor(UnaryCall* call, JobLoop* jobs, JobLoop::Task task);

// Answers with the job, which Response has as its field `job`.
template <class Response>
void AnswerWithJob(UnaryCall* call, const absl::StatusOr<JobPtr>& job, Response response = {}) {
  if (!job.ok()) return call->Fail(job.status());
  *response.mutable_job() = ToProto(**job);
  call->Reply(response);
}

// Adds the reason for errors of files to a status that has no reason yet.
absl::Status WithReasonOfFiles(const absl::Status& status);

}  // namespace switchyard::server
