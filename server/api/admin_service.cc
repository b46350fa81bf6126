#include "server/api/admin_service.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "server/api/expert_query.h"
#include "server/api/feed_call.h"
#include "server/api/unary_call.h"
#include "server/engine/live_requests.h"
#include "server/engine/profile_collector.h"

namespace switchyard::server {
namespace {

constexpr size_t kProfilePartBytes = size_t{1} << 20;

std::unique_ptr<v1::GetProfileResponse> ProgressMessage(const ProfileCollector::Progress& progress) {
  auto message = std::make_unique<v1::GetProfileResponse>();
  message->set_workers(progress.num_ranks);
  message->set_workers_done(progress.rank);
  message->set_collected_bytes(progress.bytes);
  return message;
}

// Ends the call with the profile, sent in parts, or with the error.
void EndWithProfile(Feed* feed, std::shared_ptr<const ServedModel> model, absl::StatusOr<std::string> profile) {
  if (!profile.ok()) return feed->End(profile.status());
  feed->EndWith([model = std::move(model), bytes = *std::move(profile),
                 sent = size_t{0}]() mutable -> std::unique_ptr<v1::GetProfileResponse> {
    if (sent == bytes.size()) return nullptr;
    auto message = std::make_unique<v1::GetProfileResponse>();
    message->set_model(model->name);
    message->set_weights_hash(model->weights_hash);
    message->set_total_bytes(static_cast<int64_t>(bytes.size()));
    message->set_data(bytes.substr(sent, kProfilePartBytes));
    sent += message->data().size();
    return message;
  });
}

// names: of the ways.
void FillClass(const batching::StepTrial::Seen& seen, const std::vector<double>& expected,
               const std::vector<std::string>& names, v1::StepClass* out) {
  out->set_least_rows(seen.least);
  out->set_most_rows(seen.most);
  out->set_prompts(seen.prompts);
  out->set_uneven(seen.uneven);
  out->set_chosen(names[static_cast<size_t>(seen.best)]);
  for (size_t way = 0; way < seen.ways.size(); ++way) {
    v1::StepWay* const to = out->add_ways();
    to->set_name(names[way]);
    to->set_tried(seen.ways[way].tried);
    to->set_steps(seen.ways[way].steps);
    const double measured = seen.ways[way].row_seconds * static_cast<double>(seen.most);
    if (measured > 0) to->set_measured_seconds(measured);
    if (way < expected.size()) to->set_expected_seconds(expected[way]);
  }
}

v1::GetPlanResponse DescribePlan(const ChoicesCopy& choices) {
  v1::GetPlanResponse out;
  out.set_note(choices.note);
  if (choices.layer.links.measured()) {
    out.set_link_start_seconds(choices.layer.links.start_seconds);
    out.set_link_bytes_per_second(choices.layer.links.bytes_per_second);
    out.set_link_r_squared(choices.layer.links.r_squared);
  }
  if (choices.layer.expert.any()) {
    out.set_expert_weights_seconds(choices.layer.expert.weights_seconds);
    out.set_expert_row_seconds(choices.layer.expert.row_seconds);
  }
  std::vector<std::string> cuts;
  for (const int32_t number : choices.micro_batches) cuts.push_back(absl::StrCat(number));
  for (const auto& of : choices.cuts) FillClass(of, ExpectedSeconds(choices, of), cuts, out.add_micro_batches());
  for (const auto& of : choices.placements) FillClass(of, {}, {"static", "other"}, out.add_placement());
  return out;
}

}  // namespace

grpc::ServerUnaryReactor* AdminServiceImpl::GetExperts(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "AdminService/GetExperts");
  if (call->Refused()) return call;
  v1::GetExpertsRequest message;
  std::shared_ptr<const ServedModel> model;
  const absl::Status status = request_context_->Read(*context, *request, &message, &model);
  if (!status.ok()) {
    call->Fail(status);
    return call;
  }
  QueryExperts(request_context_, message, model, RequestContext::FrontClient(call->caller(), *context),
               [call](const absl::StatusOr<v1::GetExpertsResponse>& experts) {
                 experts.ok() ? call->Reply(*experts) : call->Fail(experts.status());
               });
  return call;
}

grpc::ServerUnaryReactor* AdminServiceImpl::GetPlan(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "AdminService/GetPlan");
  if (call->Refused()) return call;
  v1::GetPlanRequest message;
  std::shared_ptr<const ServedModel> model;
  const absl::Status status = [&] {
    RETURN_IF_ERROR(request_context_->Read(*context, *request, &message, &model));
    return CheckHasExperts(*model);
  }();
  if (!status.ok()) {
    call->Fail(status);
    return call;
  }
  request_context_->engine->CopyChoices([call, model](std::unique_ptr<const ChoicesCopy> choices) {
    if (choices == nullptr) return call->Fail(ServerStops());
    // On the pool, as the engine's thread must not wait for it.
    call->Start([model, choices = std::shared_ptr<const ChoicesCopy>(std::move(choices))](UnaryCall* call) {
      v1::GetPlanResponse answer = DescribePlan(*choices);
      answer.set_model(model->name);
      call->Reply(answer);
    });
  });
  return call;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* AdminServiceImpl::GetProfile(grpc::CallbackServerContext* context,
                                                                         const grpc::ByteBuffer* request) {
  auto* call = new FeedCall(request_context_, context, "AdminService/GetProfile");
  if (call->Refused()) return call;
  const std::shared_ptr<Feed> feed = call->feed();
  v1::GetProfileRequest message;
  std::shared_ptr<const ServedModel> model;
  const absl::Status status = [&] {
    RETURN_IF_ERROR(request_context_->Read(*context, *request, &message, &model));
    RETURN_IF_ERROR(CheckHasExperts(*model));
    return CheckProfileRequest(message, model->weights_hash);
  }();
  if (!status.ok()) {
    feed->End(status);
    return call;
  }
  ProfileCollector::Call collect;
  collect.on_progress = [feed](const ProfileCollector::Progress& progress) {
    feed->Offer([progress] { return ProgressMessage(progress); });
  };
  collect.done = [feed, model, pool = request_context_->pool,
                  client = RequestContext::FrontClient(call->caller(), *context)](
                     absl::StatusOr<std::vector<std::string>> bundles) {
    if (!bundles.ok()) return feed->End(bundles.status());
    // On the pool, as the engine's thread must not wait for it.
    pool->Post({.client = client,
                .run =
                    [feed, model, bundles = *std::move(bundles)] {
                      EndWithProfile(feed.get(), model, MergeProfiles(bundles, model->weights_hash));
                    },
                .refuse = [feed](const absl::Status& why) { feed->End(why); }});
  };
  request_context_->engine->CollectProfile(std::move(collect));
  return call;
}

}  // namespace switchyard::server
