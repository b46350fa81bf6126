#include "server/http/tokenize.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "server/http/api_errors.h"
#include "server/http/apis/anthropic.h"
#include "server/http/apis/chat.h"
#include "server/http/json_fields.h"

namespace switchyard::server {
namespace {

using Json = JsonFields::Json;

// Runs `make` on the front pool and answers with what it returns.
template <class MakeFn>
void AnswerFromPool(RequestContext* context, const std::shared_ptr<HttpExchange>& exchange, const Caller& caller,
                    MakeFn make, ErrorShape shape = ErrorShape::kOpenAi) {
  const auto answer = [context, exchange, shape](const absl::StatusOr<Json>& body) {
    if (!body.ok()) context->metrics->request_error(body.status().code()).Increment();
    HttpReply reply = body.ok() ? HttpReply{.body = JsonText(*body)} : ErrorReply(shape, body.status());
    exchange->Post([exchange, reply = std::move(reply)]() mutable { exchange->Reply(std::move(reply)); });
  };
  context->pool->Post({.client = caller.name.empty() ? FrontClientOfPeer(exchange->request().peer) : caller.name,
                       .bytes = static_cast<int64_t>(exchange->request().body.size()),
                       .run = [answer, context, exchange, make] { answer(make(*context, exchange->request().body)); },
                       .refuse = [answer](const absl::Status& why) { answer(why); }});
}

absl::StatusOr<Json> TokenizeBody(const RequestContext& context, const std::string& body) {
  Json json;
  RETURN_IF_ERROR(ParseBody(body, &json));
  const JsonFields fields(json);
  v1::TokenizeRequest request;
  bool wants_strings = false;
  RETURN_IF_ERROR(fields.String("model", [&](const std::string& name) { request.set_model(name); }));
  RETURN_IF_ERROR(fields.String("prompt", [&](const std::string& text) { request.set_text(text); }));
  if (fields.Find("messages") != nullptr) RETURN_IF_ERROR(ReadMessages(fields, "messages", request.mutable_messages()));
  RETURN_IF_ERROR(fields.Bool("add_special_tokens", [&](bool value) { request.set_add_special_tokens(value); }));
  RETURN_IF_ERROR(fields.Bool("return_token_strs", [&](bool value) { wants_strings = value; }));
  if (request.input_case() == v1::TokenizeRequest::INPUT_NOT_SET)
    return rpc::BadField("prompt", "or messages is needed", "1", "0");
  std::shared_ptr<const ServedModel> model;
  ASSIGN_OR_RETURN(const ConvertArgs args, context.Args(std::nullopt, &model));
  ASSIGN_OR_RETURN(const v1::TokenizeResponse response, ConvertTokenize(request, args));
  Json out = {{"count", response.token_ids_size()}, {"max_model_len", model->max_model_len}};
  out["tokens"] = std::vector<int32_t>(response.token_ids().begin(), response.token_ids().end());
  out["token_strs"] = nullptr;
  if (wants_strings) out["token_strs"] = std::vector<std::string>(response.tokens().begin(), response.tokens().end());
  return out;
}

absl::StatusOr<Json> CountTokensBody(const RequestContext& context, const std::string& body) {
  v1::TokenizeRequest request;
  ASSIGN_OR_RETURN(const std::unique_ptr<OutputFrame> output, ReadMessagesToCount(context.text, body, &request));
  std::shared_ptr<const ServedModel> model;
  ASSIGN_OR_RETURN(ConvertArgs args, context.Args(std::nullopt, &model));
  args.output = output.get();
  ASSIGN_OR_RETURN(const v1::TokenizeResponse response, ConvertTokenize(request, args));
  return Json{{"input_tokens", response.token_ids_size()}};
}

absl::StatusOr<Json> DetokenizeBody(const RequestContext& context, const std::string& body) {
  Json json;
  RETURN_IF_ERROR(ParseBody(body, &json));
  const JsonFields fields(json);
  v1::DetokenizeRequest request;
  request.set_skip_special_tokens(false);
  RETURN_IF_ERROR(fields.String("model", [&](const std::string& name) { request.set_model(name); }));
  const Json* tokens = nullptr;
  RETURN_IF_ERROR(fields.Array("tokens", &tokens));
  if (tokens == nullptr) return rpc::BadField("tokens", "is missing", "1", "0");
  std::shared_ptr<const ServedModel> model;
  ASSIGN_OR_RETURN(const ConvertArgs args, context.Args(std::nullopt, &model));
  for (size_t i = 0; i < tokens->size(); ++i) {
    const std::optional<int64_t> id = IntegerIn((*tokens)[i], 0, model->vocab_size - 1);
    if (!id.has_value()) {
      return fields.Wrong(absl::StrCat("tokens[", i, "]"),
                          absl::StrCat("a token id within [0, ", model->vocab_size, ")"), (*tokens)[i]);
    }
    request.add_token_ids(static_cast<int32_t>(*id));
  }
  ASSIGN_OR_RETURN(const v1::DetokenizeResponse response, ConvertDetokenize(request, args));
  return Json{{"prompt", response.text()}};
}

}  // namespace

void AnswerTokenize(RequestContext* context, const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  AnswerFromPool(context, exchange, caller, &TokenizeBody);
}
void AnswerCountTokens(RequestContext* context, const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  AnswerFromPool(context, exchange, caller, &CountTokensBody, ErrorShape::kAnthropic);
}
void AnswerDetokenize(RequestContext* context, const std::shared_ptr<HttpExchange>& exchange, const Caller& caller) {
  AnswerFromPool(context, exchange, caller, &DetokenizeBody);
}

}  // namespace switchyard::server
