#include "server/api/request_context.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/support/api_key.h"
#include "proto/support/errors.h"
#include "scheduler/base/clock.h"
#include "server/admission/peer_name.h"
#include "server/api/call_metadata.h"

namespace switchyard::server {

grpc::Status OnTheWire(const absl::Status& status, absl::string_view request_id, grpc::ServerContextBase* context) {
  const grpc::Status wire = rpc::ToGrpcStatus(status, request_id);
  if (const rpc::ErrorView view = rpc::ViewError(wire); view.retry_after > absl::ZeroDuration()) {
    context->AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(absl::ToInt64Milliseconds(view.retry_after)));
  }
  return wire;
}

namespace {

std::vector<absl::string_view> MetadataOf(const grpc::ServerContextBase& context, const char* name) {
  std::vector<absl::string_view> values;
  const auto [begin, end] = context.client_metadata().equal_range(name);
  for (auto it = begin; it != end; ++it) values.emplace_back(it->second.data(), it->second.size());
  return values;
}

}  // namespace

absl::StatusOr<Caller> RequestContext::Admit(const grpc::ServerContextBase& context, absl::string_view method) const {
  RETURN_IF_ERROR(CheckMetadata(context.client_metadata()));
  return AdmitKey(MetadataOf(context, rpc::kAuthorization), method, KeyPlace::kMetadata);
}

std::shared_ptr<ObservedRequest> RequestContext::Observe(const grpc::ServerContextBase& context,
                                                         const absl::StatusOr<Caller>& caller,
                                                         absl::Time arrival) const {
  if (observer == nullptr) return nullptr;
  return observer->Begin({.key = caller.ok() ? caller->name : "",
                          .client = AddressOfPeer(context.peer()),
                          .model = config->served_model_name,
                          .arrival = arrival,
                          .traceparents = MetadataOf(context, kTraceparent),
                          .tracestates = MetadataOf(context, kTracestate)});
}

absl::StatusOr<Caller> RequestContext::AdmitKey(absl::Span<const absl::string_view> authorization,
                                                absl::string_view method, KeyPlace place) const {
  if (keys == nullptr) return Caller();
  absl::StatusOr<Caller> caller = keys->Admit(method, authorization, place);
  if (!caller.ok()) metrics->call_refused(v1::ErrorReason_Name(rpc::ReasonOf(caller.status()))).Increment();
  return caller;
}

std::string RequestContext::FrontClient(const Caller& caller, const grpc::ServerContextBase& context) {
  return caller.name.empty() ? FrontClientOfPeer(context.peer()) : caller.name;
}

absl::StatusOr<ConvertArgs> RequestContext::Args(const grpc::ServerContextBase& context,
                                                 std::shared_ptr<const ServedModel>* model) const {
  // gRPC's deadline is a wall-clock time; only the time until then counts.
  if (context.deadline() == std::chrono::system_clock::time_point::max()) return Args(std::nullopt, model);
  return Args(absl::FromChrono(context.deadline() - std::chrono::system_clock::now()), model);
}

absl::StatusOr<ConvertArgs> RequestContext::Args(std::optional<absl::Duration> limit,
                                                 std::shared_ptr<const ServedModel>* model) const {
  *model = engine->model();
  if (*model == nullptr) return LoadingError(*config, engine->load().not_ready_reason);
  ConvertArgs args;
  args.model = model->get();
  args.text = text;
  args.constraints = constraints;
  args.limits.max_choices = config->batching.max_choices;
  args.limits.max_prompt_bytes = static_cast<size_t>(config->max_prompt_bytes);
  thread_local absl::BitGen gen;
  args.drawn_id = absl::StrCat("req-", absl::Hex(absl::Uniform<uint64_t>(gen), absl::kZeroPad16));
  args.drawn_seed = absl::Uniform<uint64_t>(gen);
  args.now = MonotonicNow();
  args.clock = &MonotonicNow;
  args.wall_now = absl::Now();
  args.deadline = args.now + std::min(config->default_deadline, config->max_deadline);
  if (limit.has_value() && *limit > config->max_deadline) {
    return rpc::BadField(
        "deadline",
        absl::StrCat(absl::FormatDuration(*limit), " away, limit ", absl::FormatDuration(config->max_deadline)),
        absl::FormatDuration(config->max_deadline), absl::FormatDuration(*limit));
  }
  if (limit.has_value()) args.deadline = args.now + *limit;
  return args;
}

}  // namespace switchyard::server
