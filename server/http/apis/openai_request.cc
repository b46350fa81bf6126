#include "server/http/apis/openai_request.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"

namespace switchyard::server {
namespace {

using Json = JsonFields::Json;

constexpr char kFormatTypes[] = "\"text\", \"json_object\" or \"json_schema\"";

absl::Status ReadStops(const JsonFields& fields, v1::GenerateRequest* message) {
  const Json* const stop = fields.Find("stop");
  if (stop == nullptr) return absl::OkStatus();
  if (stop->is_string()) {
    message->add_stop(stop->get<std::string>());
    return absl::OkStatus();
  }
  if (!stop->is_array()) return fields.Wrong("stop", "a string or an array of strings", *stop);
  for (size_t i = 0; i < stop->size(); ++i) {
    if (!(*stop)[i].is_string()) return fields.Wrong(absl::StrCat("stop[", i, "]"), "a string", (*stop)[i]);
    message->add_stop((*stop)[i].get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadStopIds(const JsonFields& fields, v1::GenerateRequest* message) {
  const Json* ids = nullptr;
  RETURN_IF_ERROR(fields.Array("stop_token_ids", &ids));
  for (size_t i = 0; ids != nullptr && i < ids->size(); ++i) {
    const std::optional<int64_t> id = IntegerIn((*ids)[i], INT32_MIN, INT32_MAX);
    if (!id.has_value()) return fields.Wrong(absl::StrCat("stop_token_ids[", i, "]"), "a token id", (*ids)[i]);
    message->add_stop_token_ids(static_cast<int32_t>(*id));
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(const JsonFields& fields, v1::SamplingParameters* sampling) {
  const Json* bias = nullptr;
  RETURN_IF_ERROR(fields.Object("logit_bias", &bias));
  if (bias == nullptr) return absl::OkStatus();
  for (const auto& [key, value] : bias->items()) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(key, &token)) {
      return rpc::BadField(fields.Name("logit_bias"), absl::StrCat(Quote(key), " is no token id"), "a token id", key);
    }
    if (!value.is_number()) return fields.Wrong(absl::StrCat("logit_bias.", token), "a number", value);
    (*sampling->mutable_logit_bias())[token] = value.get<float>();
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const JsonFields& fields, v1::SamplingParameters* to) {
  RETURN_IF_ERROR(fields.Number("temperature", [to](double value) { to->set_temperature(value); }));
  RETURN_IF_ERROR(fields.Number("top_p", [to](double value) { to->set_top_p(value); }));
  RETURN_IF_ERROR(fields.Integer("top_k", [to](int64_t value) { to->set_top_k(static_cast<int32_t>(value)); }));
  RETURN_IF_ERROR(fields.Number("min_p", [to](double value) { to->set_min_p(value); }));
  RETURN_IF_ERROR(fields.Number("presence_penalty", [to](double value) { to->set_presence_penalty(value); }));
  RETURN_IF_ERROR(fields.Number("frequency_penalty", [to](double value) { to->set_frequency_penalty(value); }));
  RETURN_IF_ERROR(fields.Number("repetition_penalty", [to](double value) { to->set_repetition_penalty(value); }));
  RETURN_IF_ERROR(fields.Integer(
      "seed", [to](int64_t value) { to->set_seed(static_cast<uint64_t>(value)); }, INT64_MIN, INT64_MAX));
  return ReadLogitBias(fields, to);
}

// The schema of {"json_schema": {"name", "schema"}}.
absl::Status ReadJsonSchema(const JsonFields& format, v1::Constraint* to, std::string* field) {
  const Json* outer = nullptr;
  RETURN_IF_ERROR(format.Object("json_schema", &outer));
  if (outer == nullptr) return rpc::BadField(format.Name("json_schema"), "is missing", "1", "0");
  const Json* schema = nullptr;
  const JsonFields inner(*outer, format.Name("json_schema."));
  RETURN_IF_ERROR(inner.Object("schema", &schema));
  if (schema == nullptr) return rpc::BadField(inner.Name("schema"), "is missing", "1", "0");
  to->set_json_schema(JsonText(*schema));
  *field = inner.Name("schema");
  return absl::OkStatus();
}

absl::Status ReadResponseFormat(const JsonFields& fields, v1::GenerateRequest* message, std::string* field) {
  const Json* format = nullptr;
  RETURN_IF_ERROR(fields.Object("response_format", &format));
  if (format == nullptr) return absl::OkStatus();
  const JsonFields inner(*format, "response_format.");
  const Json* const type = inner.Find("type");
  if (type != nullptr && *type == "text") return absl::OkStatus();
  if (type != nullptr && *type == "json_object") {
    message->mutable_constraint()->set_json_object(true);
    *field = "response_format";
    return absl::OkStatus();
  }
  if (type != nullptr && *type == "json_schema") return ReadJsonSchema(inner, message->mutable_constraint(), field);
  return inner.Wrong("type", kFormatTypes, type == nullptr ? Json() : *type);
}

// vLLM's members: `prefix` is "guided_", or "" within structured_outputs.
absl::Status ReadGuided(const JsonFields& fields, const std::string& prefix, v1::GenerateRequest* message,
                        std::string* field) {
  for (const char* const kind : {"json", "json_object", "regex", "grammar", "choice"}) {
    const std::string key = prefix + kind;
    if (const Json* const value = fields.Find(key.c_str()); value == nullptr || *value == false) continue;
    if (!field->empty())
      return rpc::BadField(fields.Name(key), absl::StrCat("only one of ", *field, " and this may be set"), "1", "2");
    *field = fields.Name(key);
  }
  const std::string json_key = prefix + "json", choice_key = prefix + "choice";
  const Json *choice = nullptr, *const json = fields.Find(json_key.c_str());
  if (json != nullptr && !json->is_object() && !json->is_string())
    return fields.Wrong(json_key, "a schema, or one as text", *json);
  if (json != nullptr)
    message->mutable_constraint()->set_json_schema(json->is_string() ? json->get<std::string>() : JsonText(*json));
  RETURN_IF_ERROR(fields.Bool((prefix + "json_object").c_str(), [message](bool value) {
    if (value) message->mutable_constraint()->set_json_object(true);
  }));
  RETURN_IF_ERROR(fields.String((prefix + "regex").c_str(),
                                [&](const std::string& value) { message->mutable_constraint()->set_regex(value); }));
  RETURN_IF_ERROR(fields.String((prefix + "grammar").c_str(),
                                [&](const std::string& value) { message->mutable_constraint()->set_grammar(value); }));
  RETURN_IF_ERROR(fields.Array(choice_key.c_str(), &choice));
  if (choice != nullptr && choice->empty())
    return rpc::BadField(fields.Name(choice_key), "is empty: at least one is needed", "1", "0");
  for (size_t i = 0; choice != nullptr && i < choice->size(); ++i) {
    if (!(*choice)[i].is_string()) return fields.Wrong(absl::StrCat(choice_key, "[", i, "]"), "a string", (*choice)[i]);
    message->mutable_constraint()->mutable_choice()->add_texts((*choice)[i].get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadConstraint(const JsonFields& fields, v1::GenerateRequest* message, std::string* field) {
  RETURN_IF_ERROR(ReadResponseFormat(fields, message, field));
  RETURN_IF_ERROR(ReadGuided(fields, "guided_", message, field));
  const Json* outputs = nullptr;
  RETURN_IF_ERROR(fields.Object("structured_outputs", &outputs));
  if (outputs == nullptr) return absl::OkStatus();
  const JsonFields inner(*outputs, "structured_outputs.");
  for (const char* key : {"structural_tag", "whitespace_pattern", "disable_any_whitespace",
                          "disable_additional_properties", "disable_fallback"}) {
    RETURN_IF_ERROR(RefuseSet(inner, key, "is not supported"));
  }
  return ReadGuided(inner, "", message, field);
}

}  // namespace

absl::Status ReadCommon(const JsonFields& fields, v1::GenerateRequest* message, std::string* constraint_field) {
  RETURN_IF_ERROR(fields.String("model", [&](const std::string& value) { message->set_model(value); }));
  RETURN_IF_ERROR(fields.String("request_id", [&](const std::string& value) { message->set_request_id(value); }));
  RETURN_IF_ERROR(ReadSampling(fields, message->mutable_sampling()));
  RETURN_IF_ERROR(ReadStops(fields, message));
  RETURN_IF_ERROR(ReadStopIds(fields, message));
  RETURN_IF_ERROR(fields.Integer("n", [&](int64_t value) { message->set_n(static_cast<int32_t>(value)); }));
  RETURN_IF_ERROR(
      fields.Integer("min_tokens", [&](int64_t value) { message->set_min_tokens(static_cast<int32_t>(value)); }));
  RETURN_IF_ERROR(fields.Bool("ignore_eos", [&](bool value) { message->set_ignore_eos(value); }));
  RETURN_IF_ERROR(fields.Bool("skip_special_tokens", [&](bool value) { message->set_skip_special_tokens(value); }));
  RETURN_IF_ERROR(fields.Integer("prompt_logprobs",
                                 [&](int64_t value) { message->set_prompt_logprobs(static_cast<int32_t>(value)); }));
  RETURN_IF_ERROR(ReadConstraint(fields, message, constraint_field));
  // Fields of vLLM's that change answers.
  for (const char* key :
       {"use_beam_search", "allowed_token_ids", "bad_words", "include_stop_str_in_output", "truncate_prompt_tokens",
        "guided_whitespace_pattern", "return_token_ids", "return_tokens_as_token_ids"}) {
    RETURN_IF_ERROR(RefuseSet(fields, key, "is not supported"));
  }
  return absl::OkStatus();
}

absl::Status ConvertFormat(const Json& format, const std::string& path, Json* to) {
  const JsonFields fields(format, absl::StrCat(path, "."));
  const Json type = format.value("type", Json());
  if (type != "text" && type != "json_object" && type != "json_schema") return fields.Wrong("type", kFormatTypes, type);
  Json converted = {{"type", type}};
  if (type == "json_schema") {
    const Json* schema = nullptr;
    RETURN_IF_ERROR(fields.Object("schema", &schema));
    if (schema == nullptr) return rpc::BadField(fields.Name("schema"), "is missing", "1", "0");
    converted["json_schema"] = {{"schema", *schema}};
  }
  (*to)["response_format"] = std::move(converted);
  return absl::OkStatus();
}

absl::Status ReadStreamOptions(const JsonFields& fields, StreamOptions* options) {
  RETURN_IF_ERROR(fields.Bool("stream", [&](bool value) { options->stream = value; }));
  const Json* json = nullptr;
  RETURN_IF_ERROR(fields.Object("stream_options", &json));
  if (json == nullptr) return absl::OkStatus();
  if (!options->stream) {
    return rpc::BadField("stream_options", "is allowed with \"stream\": true only", "stream", "false");
  }
  const JsonFields inner(*json, "stream_options.");
  RETURN_IF_ERROR(inner.Bool("include_usage", [&](bool value) { options->include_usage = value; }));
  return inner.Bool("continuous_usage_stats", [&](bool value) { options->continuous_usage = value; });
}

absl::Status RefuseSet(const JsonFields& fields, const char* key, absl::string_view why) {
  const Json* const value = fields.Find(key);
  if (value == nullptr || *value == false || *value == 0 || (!value->is_number() && value->empty()) ||
      (value->is_string() && value->get_ref<const std::string&>().empty()))
    return absl::OkStatus();
  return rpc::BadField(fields.Name(key), why, "", JsonText(*value).substr(0, 100));
}

Json UsageSum::ToJson() const {
  Json usage = {{"prompt_tokens", prompt_tokens},
                {"completion_tokens", completion_tokens},
                {"total_tokens", prompt_tokens + completion_tokens},
                {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
  if (reasoning_tokens.has_value()) usage["completion_tokens_details"] = {{"reasoning_tokens", *reasoning_tokens}};
  return usage;
}

const char* FinishName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "abort";
  }
}

Json StopReason(const v1::Finish& finish) {
  if (finish.has_stop_string()) return finish.stop_string();
  return nullptr;
}

Json PromptLogprobs(const std::vector<v1::PositionLogprobs>& positions) {
  Json all = Json::array({nullptr});
  const auto add = [](const v1::TokenLogprob& token, Json* to) {
    (*to)[absl::StrCat(token.token_id())] = {
        {"logprob", token.logprob()}, {"rank", token.rank()}, {"decoded_token", token.text()}};
  };
  for (const v1::PositionLogprobs& position : positions) {
    Json tokens = Json::object();
    add(position.chosen(), &tokens);
    for (const v1::TokenLogprob& token : position.top()) add(token, &tokens);
    all.push_back(std::move(tokens));
  }
  return all;
}

std::string ResponseId(absl::string_view prefix, absl::string_view request_id) {
  return absl::StrCat(prefix, absl::StripPrefix(request_id, "req-"));
}

std::string Event(const Json& data) { return absl::StrCat("data: ", JsonText(data), "\n\n"); }

std::string MembersText(const Json& object) {
  const std::string text = JsonText(object);
  return text.substr(1, text.size() - 2);
}

std::string ChoiceEvent(absl::string_view head, absl::string_view choice, const StreamOptions& options,
                        const ChoiceUsage& usage) {
  std::string event = absl::StrCat("data: {", head, ",\"choices\":[{", choice, "}]");
  if (options.include_usage && !options.continuous_usage) event += ",\"usage\":null";
  if (options.include_usage && options.continuous_usage) {
    absl::StrAppend(&event, ",\"usage\":{\"prompt_tokens\":", usage.prompt_tokens,
                    ",\"completion_tokens\":", usage.completion_tokens,
                    ",\"total_tokens\":", usage.prompt_tokens + usage.completion_tokens, "}");
  }
  return absl::StrCat(event, "}\n\n");
}

}  // namespace switchyard::server
