#include "server/http/page/live_api.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "proto/support/errors.h"
#include "proto/support/host_port.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "server/api/expert_query.h"
#include "server/api/inference_service.h"
#include "server/http/api_errors.h"
#include "server/jobs/api/job_convert.h"
#include "server/jobs/api/job_queries.h"
#include "server/jobs/api/training_requests.h"
#include "server/jobs/journal/loss_curve.h"

namespace switchyard::server {
namespace {

constexpr int kShownJobs = 50;
constexpr absl::string_view kJobsPath = "/api/jobs/";

std::string ClientOf(const LiveCall& call) {
  return call.caller.name.empty() ? FrontClientOfPeer(call.exchange->request().peer) : call.caller.name;
}

// From any thread.
void Reply(const LiveCall& call, HttpReply reply) {
  reply.headers.emplace_back("Cache-Control", "no-store");
  call.exchange->Post([exchange = call.exchange, reply = std::move(reply)] { exchange->Reply(reply); });
}

void ReplyError(const LiveCall& call, const absl::Status& status) {
  call.context->metrics->request_error(status.code()).Increment();
  Reply(call, ErrorReply(ErrorShape::kOpenAi, status));
}

void ReplyMessage(const LiveCall& call, const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return ReplyError(call, absl::InternalError(status.ToString()));
  Reply(call, {.body = std::move(json)});
}

// Runs `work`, which replies, on the pool.
void RunOn(FrontPool* pool, const LiveCall& call, std::function<void()> work) {
  pool->Post({.client = ClientOf(call), .bytes = 0, .run = std::move(work), .refuse = [call](const absl::Status& why) {
                ReplyError(call, why);
              }});
}

// The query's number of that name; -1: it is not there.
absl::StatusOr<int32_t> NumberOf(const LiveCall& call, absl::string_view name) {
  for (absl::string_view part : absl::StrSplit(call.exchange->request().query, '&')) {
    if (!absl::ConsumePrefix(&part, name) || !absl::ConsumePrefix(&part, "=")) continue;
    int32_t number = -1;
    if (!absl::SimpleAtoi(part, &number) || number < 0)
      return rpc::BadField(name, absl::StrCat(Quote(part), " is no number"), "a number", std::string(part));
    return number;
  }
  return -1;
}

absl::StatusOr<v1::GetExpertsRequest> ExpertsRequest(const LiveCall& call) {
  v1::GetExpertsRequest request;
  ASSIGN_OR_RETURN(const int32_t layer, NumberOf(call, "layer"));
  ASSIGN_OR_RETURN(const int32_t expert, NumberOf(call, "expert"));
  if (layer >= 0) request.add_layers(layer);
  if (expert >= 0 && layer < 0) return rpc::BadField("layer", "is missing", "a number", "none");
  if (expert >= 0) {
    request.mutable_why()->set_layer(layer);
    request.mutable_why()->set_expert(expert);
  }
  return request;
}

nlohmann::json CurveJson(const std::vector<LossPoint>& curve) {
  nlohmann::json points = nlohmann::json::array();
  for (const LossPoint& point : curve) points.push_back({point.step, point.loss});
  return points;
}

void ReplyLosses(const LiveCall& call, const std::string& id) {
  nlohmann::json body;
  const absl::Status status = [&] {
    const RootDir& root = *call.training->checkpoints;
    ASSIGN_OR_RETURN(const auto steps, ReadLossCurve(root, absl::StrCat(id, "/log/steps.csv"), kLossPoints));
    ASSIGN_OR_RETURN(const auto evaluations,
                     ReadLossCurve(root, absl::StrCat(id, "/log/evaluations.csv"), kLossPoints));
    body = {{"steps", CurveJson(steps)}, {"evaluations", CurveJson(evaluations)}};
    return absl::OkStatus();
  }();
  status.ok() ? Reply(call, {.body = JsonText(body)}) : ReplyError(call, status);
}

}  // namespace

absl::Status MayShowOperations(const RequestContext& context) {
  const ServerConfig& config = *context.config;
  if (context.keys != nullptr) return absl::OkStatus();
  if (config.admin_port >= 0 && (rpc::IsLoopback(config.host) || !rpc::IsLoopback(config.admin_host)))
    return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "experts and jobs are for administrators: without --api_keys_file they are shown here only if the port of "
      "administration (--admin_host, --admin_port) is open to the same clients"));
}

void AnswerLoad(const LiveCall& call) { ReplyMessage(call, DescribeLoad(*call.context)); }

void AnswerExperts(const LiveCall& call) {
  const absl::StatusOr<v1::GetExpertsRequest> request = ExpertsRequest(call);
  if (!request.ok()) return ReplyError(call, request.status());
  std::shared_ptr<const ServedModel> model;
  const absl::StatusOr<ConvertArgs> args = call.context->Args(std::nullopt, &model);
  if (!args.ok()) return ReplyError(call, args.status());
  QueryExperts(call.context, *request, model, ClientOf(call),
               [call](const absl::StatusOr<v1::GetExpertsResponse>& experts) {
                 experts.ok() ? ReplyMessage(call, *experts) : ReplyError(call, experts.status());
               });
}

void AnswerJobs(const LiveCall& call) {
  if (const absl::Status status = CheckJobs(*call.training); !status.ok()) return ReplyError(call, status);
  ListJobsAs(*call.training, call.caller, {.most = kShownJobs}, [call](const absl::StatusOr<JobPage>& page) {
    if (!page.ok()) return ReplyError(call, page.status());
    RunOn(call.context->pool, call, [call, page = *page] { ReplyMessage(call, ToProto(page)); });
  });
}

void AnswerJob(const LiveCall& call) {
  absl::string_view id = absl::StripPrefix(call.exchange->request().path, kJobsPath);
  const bool wants_losses = absl::ConsumeSuffix(&id, "/losses");
  const absl::Status status = [&] {
    RETURN_IF_ERROR(CheckJobs(*call.training));
    return CheckJobId(std::string(id));
  }();
  if (!status.ok()) return ReplyError(call, status);
  GetJobAs(*call.training, call.caller, std::string(id), [call, wants_losses](const absl::StatusOr<JobPtr>& job) {
    if (!job.ok()) return ReplyError(call, job.status());
    if (wants_losses) {
      return RunOn(call.context->file_pool, call, [call, id = (*job)->id] { ReplyLosses(call, id); });
    }
    RunOn(call.context->pool, call, [call, job = *job] { ReplyMessage(call, ToProto(*job)); });
  });
}

}  // namespace switchyard::server
