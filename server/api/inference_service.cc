#include "server/api/inference_service.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/status_macros.h"
#include "server/api/generate_reactor.h"
#include "server/api/model_names.h"
#include "server/api/unary_call.h"

namespace switchyard::server {
namespace {

constexpr int kGenerateIndex = 0;  // the methods' order in inference.proto

// Answers a call on the pool, with what `convert` makes of its request.
template <class Request, class Response>
UnaryCall* Convert(UnaryCall* call, absl::StatusOr<Response> (*convert)(const Request&, const ConvertArgs&)) {
  if (call->Refused()) return call;
  call->Start([convert](UnaryCall* call) {
    std::shared_ptr<const ServedModel> model;
    auto result = [&]() -> absl::StatusOr<Response> {
      Request message;
      RETURN_IF_ERROR(rpc::ParseRaw(call->request(), &message));
      ASSIGN_OR_RETURN(ConvertArgs args, call->request_context()->Args(*call->context(), &model));
      args.cancelled = [call] { return call->cancelled().load(); };
      return convert(message, args);
    }();
    result.ok() ? call->Reply(*result) : call->Fail(result.status());
  });
  return call;
}

// `name`: as it was asked for; empty: the model's own.
void FillInfo(const RequestContext& request_context, const ServedModel& model, const std::string& name,
              v1::GetModelInfoResponse* out) {
  out->set_model(name.empty() ? model.name : name);
  out->set_architecture(model.architecture);
  out->set_dtype(model.dtype);
  out->set_quantization(model.quantization);
  out->set_kv_cache_dtype(model.kv_cache_dtype);
  out->set_vocab_size(model.vocab_size);
  out->set_max_model_len(model.max_model_len);
  out->set_num_layers(model.num_layers);
  out->set_num_experts(model.num_experts);
  out->set_num_moe_layers(model.num_moe_layers);
  out->set_experts_per_token(model.experts_per_token);
  out->mutable_eos_token_ids()->Add(model.eos_token_ids.begin(), model.eos_token_ids.end());
  out->set_has_tokenizer(request_context.text->has_tokenizer());
  out->set_has_chat_template(request_context.text->has_chat_template());
  out->set_num_workers(model.num_workers);
  out->set_weights_hash(model.weights_hash);
  out->set_server_version(request_context.config->version);
  const bool adds = request_context.config->add_outputs && model.num_workers > 1 && model.num_moe_layers > 0;
  for (int32_t adapter = 0; adapter <= static_cast<int32_t>(model.adapters.size()); ++adapter) {
    out->add_models(ModelName(model, adapter));
  }
  out->set_combine(adds ? absl::StrCat("added by ", model.num_workers, " workers") : "exact");
}

}  // namespace

v1::GetLoadResponse DescribeLoad(const RequestContext& request_context) {
  const ServerConfig& config = *request_context.config;
  const LoadSnapshot load = request_context.engine->load();
  v1::GetLoadResponse out;
  out.set_ready(load.ready);
  out.set_not_ready_reason(load.not_ready_reason);
  out.set_running_requests(load.scheduler.running);
  out.set_waiting_requests(load.scheduler.waiting_requests);
  out.set_waiting_tokens(load.scheduler.waiting_tokens);
  out.set_max_waiting_requests(config.batching.max_queue);
  out.set_group_epoch(load.group_epoch);
  out.set_preemptions(load.scheduler.preemptions);
  if (load.micro_batches.has_value()) {
    v1::MicroBatches* const cut = out.mutable_micro_batches();
    cut->set_steps(load.micro_batches->steps);
    cut->set_cut_steps(load.micro_batches->other_steps);
    cut->set_gained_seconds(load.micro_batches->gained_seconds);
  }
  if (load.placement.has_value()) {
    v1::AutoPlacement* placement = out.mutable_auto_placement();
    placement->set_steps(load.placement->steps);
    placement->set_deciding_steps(load.placement->other_steps);
    placement->set_gained_seconds(load.placement->gained_seconds);
  }
  for (const LoadSnapshot::Worker& worker : load.workers) {
    v1::WorkerLoad* to = out.add_workers();
    to->set_rank(worker.rank);
    to->set_pid(worker.pid);
    to->set_host(worker.host);
    to->set_metrics_address(worker.metrics_address);
    to->set_state(worker.state);
    to->set_kv_blocks_used(worker.stats.blocks_used);
    to->set_kv_blocks_cached(worker.stats.blocks_cached);
    to->set_kv_blocks_total(worker.stats.blocks_total);
    to->set_block_size(config.batching.block_size);
    to->set_running_requests(worker.stats.running);
  }
  return out;
}

// gRPC calls the handler of a method with one request message only when the message has come, and never reads a second
// one.  Registered as a method with two streams, which looks the same to clients, Generate sees the call at once: it
// can end a call whose message does not come, and a call with a second message.
InferenceServiceImpl::InferenceServiceImpl(RequestContext* request_context) : request_context_(request_context) {
  using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
  const auto handler = [request_context] {
    return new Handler([request_context](grpc::CallbackServerContext* context) {
      return new GenerateReactor(request_context, context);
    });
  };
  MarkMethodStreamed(kGenerateIndex, handler());     // sets the kind of the method
  MarkMethodRawCallback(kGenerateIndex, handler());  // sets who calls it
}

grpc::ServerUnaryReactor* InferenceServiceImpl::Tokenize(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Convert(new UnaryCall(request_context_, context, request, response, "InferenceService/Tokenize"),
                 &ConvertTokenize);
}

grpc::ServerUnaryReactor* InferenceServiceImpl::Detokenize(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return Convert(new UnaryCall(request_context_, context, request, response, "InferenceService/Detokenize"),
                 &ConvertDetokenize);
}

grpc::ServerUnaryReactor* InferenceServiceImpl::Abort(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "InferenceService/Abort");
  if (call->Refused()) return call;
  v1::AbortRequest message;
  absl::Status status = rpc::ParseRaw(*request, &message);
  if (status.ok() && message.request_id().empty()) status = rpc::BadField("request_id", "is empty", "1", "0");
  if (!status.ok()) {
    call->Fail(status);
    return call;
  }
  const std::string id = message.request_id();
  call->set_request_id(id);
  request_context_->engine->Abort(
      id,
      [call, id](bool found) {
        if (found) return call->Reply(v1::AbortResponse());
        call->Fail(rpc::MakeError(absl::StatusCode::kNotFound, v1::REQUEST_NOT_FOUND,
                                  absl::StrCat("no running request has the id ", Quote(id)),
                                  {{"field", "request_id"}}));
      },
      call->caller());
  return call;
}

grpc::ServerUnaryReactor* InferenceServiceImpl::GetModelInfo(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request,
                                                             grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "InferenceService/GetModelInfo");
  if (call->Refused()) return call;
  v1::GetModelInfoRequest message;
  v1::GetModelInfoResponse info;
  std::shared_ptr<const ServedModel> model;
  const absl::Status status = request_context_->Read(*context, *request, &message, &model);
  if (status.ok()) FillInfo(*request_context_, *model, message.model(), &info);
  call->Answer(status, info);
  return call;
}

grpc::ServerUnaryReactor* InferenceServiceImpl::GetLoad(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "InferenceService/GetLoad");
  if (call->Refused()) return call;
  v1::GetLoadRequest message;
  const absl::Status status = rpc::ParseRaw(*request, &message);
  call->Answer(status, status.ok() ? DescribeLoad(*request_context_) : v1::GetLoadResponse());
  return call;
}

}  // namespace switchyard::server
