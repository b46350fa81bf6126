// GET /api/…: what RPCs say of load, experts and jobs, as JSON, for the page's live view.
//
// An answer is the RPC's message in Protobuf's JSON form (names as in the .proto files, 64-bit numbers as strings,
// fields of default value left out).  Each has the roles and the owners of its RPC.  Functions return at once; what may
// take long runs on the pools that RPCs use.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/api/request_context.h"
#include "server/http/http_exchange.h"
#include "server/jobs/api/training_service.h"

namespace switchyard::server {

// One request for it.
struct LiveCall {
  RequestContext* context;          // borrowed
  const TrainingContext* training;  // borrowed
  std::shared_ptr<HttpExchange> exchange;
  Caller caller;
};

// PERMISSION_DENIED if what the administration's port shows is not for everybody who reaches this one: there are no
// keys, and that port is closed, or is for this machine only while this one is not.
absl::Status MayShowOperations(const RequestContext& context);

// InferenceService.GetLoad.
void AnswerLoad(const LiveCall& call);
// AdminService.GetExperts; with ?layer=L&expert=E of that layer, and why its expert is where it is.
void AnswerExperts(const LiveCall& call);
// TrainingService.ListJobs, the newest jobs.
void AnswerJobs(const LiveCall& call);
// /api/jobs/ID: TrainingService.GetJob.  /api/jobs/ID/losses: the job's loss log, as {"steps": [[step, loss], …],
// "evaluations": …}, at most kLossPoints of each.
void AnswerJob(const LiveCall& call);
inline constexpr int kLossPoints = 400;

}  // namespace switchyard::server
