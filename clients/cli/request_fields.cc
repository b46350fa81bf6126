#include "clients/cli/request_fields.h"

#include <type_traits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/command.h"
#include "clients/cli/json.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {
namespace {

using v1::DetokenizeRequest;
using v1::GenerateRequest;
using v1::SamplingParameters;
using v1::TokenizeRequest;

absl::Status InField(absl::string_view field, const absl::Status& status) {
  return BadInput(absl::StrCat(field, " ", status.message()));
}

template <auto kSet>
absl::Status Sampling(const Json& value, GenerateRequest* request) {
  return Store<kSet>(value, request->mutable_sampling());
}

absl::Status SetLogitBias(const Json& value, GenerateRequest* request) {
  if (!value.is_object()) return absl::InvalidArgumentError("must be an object such as {\"17\": -5.0}");
  for (const auto& [key, bias] : value.items()) {
    int32_t token = 0;
    double number = 0;
    if (!absl::SimpleAtoi(key, &token))
      return absl::InvalidArgumentError(absl::StrCat("has the key ", Quote(key), ", which is no token id"));
    RETURN_IF_ERROR(Read(bias, &number));
    (*request->mutable_sampling()->mutable_logit_bias())[token] = static_cast<float>(number);
  }
  return absl::OkStatus();
}

// Reads a text, or a list of ids, into a field.
template <auto kMutable, class Message>
absl::Status Into(const Json& value, Message* message) {
  auto* const field = (message->*kMutable)();
  if constexpr (std::is_same_v<decltype(field), std::string* const>) {
    return Read(value, field);
  } else {
    std::vector<int32_t> ids;
    RETURN_IF_ERROR(Read(value, &ids));
    field->Assign(ids.begin(), ids.end());
    return absl::OkStatus();
  }
}

absl::Status ReadMessage(const Json& value, v1::ChatMessage* out) {
  if (!value.is_object()) return absl::InvalidArgumentError("must be an object with role and content");
  Json extra = Json::object();
  for (const auto& [key, item] : value.items()) {
    if (key == "role") {
      if (absl::Status status = Read(item, out->mutable_role()); !status.ok()) return InField("role", status);
    } else if (key == "content" && item.is_string()) {
      if (absl::Status status = Read(item, out->mutable_content()); !status.ok()) return InField("content", status);
    } else {
      extra[key] = item;  // including null or parts as content: the template gets them unchanged
    }
  }
  if (!value.contains("role")) return absl::InvalidArgumentError("has no role");
  if (!extra.empty()) out->set_extra_json(Dump(extra));
  return absl::OkStatus();
}

template <class Request>
absl::Status SetMessages(const Json& value, Request* request) {
  if (!value.is_array())
    return absl::InvalidArgumentError("must be a list such as [{\"role\": \"user\", \"content\": \"Hi\"}]");
  for (size_t i = 0; i < value.size(); ++i) {
    const absl::Status status = ReadMessage(value[i], request->mutable_messages()->add_messages());
    if (!status.ok()) return InField(absl::StrCat("item ", i), status);
  }
  return absl::OkStatus();
}
template <class Request>
absl::Status SetTools(const Json& value, Request* request) {
  if (!value.is_array()) return absl::InvalidArgumentError("must be a list of JSON schemas");
  for (const Json& tool : value) request->mutable_messages()->add_tools(Dump(tool));
  return absl::OkStatus();
}
template <class Request>
absl::Status SetAddGenerationPrompt(const Json& value, Request* request) {
  return Store<&v1::Messages::set_add_generation_prompt>(value, request->mutable_messages());
}
template <class Request>
absl::Status SetTemplateArgs(const Json& value, Request* request) {
  if (value.is_string()) return Read(value, request->mutable_messages()->mutable_template_args_json());
  if (!value.is_object()) return absl::InvalidArgumentError("must be an object such as {\"enable_thinking\": false}");
  request->mutable_messages()->set_template_args_json(Dump(value));
  return absl::OkStatus();
}

absl::Status SetPromptIds(const Json& value, GenerateRequest* request) {
  return Into<&v1::TokenIds::mutable_ids>(value, request->mutable_token_ids());
}

absl::Status SetStop(const Json& value, GenerateRequest* request) {
  std::vector<std::string> stops;
  RETURN_IF_ERROR(Read(value, &stops));
  request->mutable_stop()->Assign(stops.begin(), stops.end());
  return absl::OkStatus();
}

absl::Status SetJsonSchema(const Json& value, GenerateRequest* request) {
  if (value.is_string()) return Read(value, request->mutable_constraint()->mutable_json_schema());
  request->mutable_constraint()->set_json_schema(Dump(value));
  return absl::OkStatus();
}
absl::Status SetJsonObject(const Json& value, GenerateRequest* request) {
  bool wanted = false;
  RETURN_IF_ERROR(Read(value, &wanted));
  if (wanted) request->mutable_constraint()->set_json_object(true);
  return absl::OkStatus();
}
template <std::string* (v1::Constraint::*Mutable)()>
absl::Status Constrain(const Json& value, GenerateRequest* request) {
  return Read(value, (request->mutable_constraint()->*Mutable)());
}
absl::Status SetChoice(const Json& value, GenerateRequest* request) {
  std::vector<std::string> texts;
  RETURN_IF_ERROR(Read(value, &texts));
  request->mutable_constraint()->mutable_choice()->mutable_texts()->Assign(texts.begin(), texts.end());
  return absl::OkStatus();
}

constexpr char kTextHelp[] = "the prompt as text";
constexpr char kMessagesHelp[] =
    "the prompt as a conversation: '[{\"role\": \"user\", \"content\": \"Hi\"}]'; the server renders the chat template";
constexpr char kToolsHelp[] = "with messages: JSON list of the tools' schemas";
constexpr char kGenerationPromptHelp[] = "with messages: end with the opening of the assistant's turn (default true)";
constexpr char kTemplateArgsHelp[] =
    "with messages: JSON object of further template variables, '{\"enable_thinking\": false}'";
constexpr char kModelHelp[] = "the model's name (default: the served one)";

const RequestField<GenerateRequest> kGenerateFields[] = {
    {"text", FieldKind::kText, kTextHelp, &Into<&GenerateRequest::mutable_text>, "Prompt"},
    {"messages", FieldKind::kJson, kMessagesHelp, &SetMessages},
    {"token_ids", FieldKind::kIds, "the prompt as token ids: 5,9,11", &SetPromptIds},
    {"tools", FieldKind::kJson, kToolsHelp, &SetTools},
    {"template_args", FieldKind::kJson, kTemplateArgsHelp, &SetTemplateArgs},
    {"template_args_json", FieldKind::kText, "the same, under the name of the protobuf field", &SetTemplateArgs},
    {"add_generation_prompt", FieldKind::kBool, kGenerationPromptHelp, &SetAddGenerationPrompt},
    {"add_special_tokens", FieldKind::kBool, "add the tokenizer's BOS and the like to the text (default true)",
     &Store<&GenerateRequest::set_add_special_tokens>},
    {"allow_special", FieldKind::kBool, "special tokens' names in the text become those tokens (default false)",
     &Store<&GenerateRequest::set_allow_special>},
    {"max_tokens", FieldKind::kNumber, "most tokens to generate (default: the model's, then what the context leaves)",
     &Store<&GenerateRequest::set_max_tokens>, "Sampling"},
    {"temperature", FieldKind::kNumber, "0 = greedy (default: the model's, then 1)",
     &Sampling<&SamplingParameters::set_temperature>},
    {"top_p", FieldKind::kNumber,
     "sample from the likeliest tokens with this probability in sum, (0, 1] (default: the model's, then 1)",
     &Sampling<&SamplingParameters::set_top_p>},
    {"top_k", FieldKind::kNumber,
     "sample from this many likeliest tokens; 0 or -1 = all (default: the model's, then all)",
     &Sampling<&SamplingParameters::set_top_k>},
    {"min_p", FieldKind::kNumber, "drop tokens below this share of the likeliest one's probability, [0, 1] (default 0)",
     &Sampling<&SamplingParameters::set_min_p>},
    {"seed", FieldKind::kNumber, "same seed, same text (default: drawn by the server and reported)",
     &Sampling<&SamplingParameters::set_seed>},
    {"stop", FieldKind::kTexts, "text that ends the output and is left out of it; may be repeated", &SetStop},
    {"stop_token_ids", FieldKind::kIds, "tokens that end the output, besides the model's own",
     &Into<&GenerateRequest::mutable_stop_token_ids>},
    {"n", FieldKind::kNumber, "choices (default 1)", &Store<&GenerateRequest::set_n>},
    {"presence_penalty", FieldKind::kNumber, "subtracted from tokens that have occurred, [-2, 2] (default 0)",
     &Sampling<&SamplingParameters::set_presence_penalty>},
    {"frequency_penalty", FieldKind::kNumber, "subtracted for each time that a token has occurred, [-2, 2] (default 0)",
     &Sampling<&SamplingParameters::set_frequency_penalty>},
    {"repetition_penalty", FieldKind::kNumber,
     "divides the logits of tokens that have occurred, (0, 10] (default: the model's, then 1)",
     &Sampling<&SamplingParameters::set_repetition_penalty>},
    {"logit_bias", FieldKind::kJson, "JSON object token id -> added to its logit, '{\"17\": -5.0}'", &SetLogitBias},
    {"min_tokens", FieldKind::kNumber, "no stop before this many tokens (default 0)",
     &Store<&GenerateRequest::set_min_tokens>},
    {"ignore_eos", FieldKind::kBool, "go on after the model's end-of-sequence tokens (default false)",
     &Store<&GenerateRequest::set_ignore_eos>},
    {"json_schema", FieldKind::kJson, "the output is a JSON value that is valid under this schema: \"$(cat FILE)\"",
     &SetJsonSchema, "Constraint of the output"},
    {"json_object", FieldKind::kBool, "the output is a JSON object", &SetJsonObject},
    {"regex", FieldKind::kText, "the output is a text that this regular expression matches as a whole",
     &Constrain<&v1::Constraint::mutable_regex>},
    {"choice", FieldKind::kTexts, "the output is this text; may be repeated, for one of several", &SetChoice},
    {"grammar", FieldKind::kText, "the output is a text of the rule `root` of this EBNF grammar",
     &Constrain<&v1::Constraint::mutable_grammar>},
    {"logprobs", FieldKind::kNumber, "log probabilities of each output token and of the K likeliest beside it, 0 to 20",
     &Store<&GenerateRequest::set_logprobs>, "Answer"},
    {"prompt_logprobs", FieldKind::kNumber, "the same for the prompt's tokens, from the second on",
     &Store<&GenerateRequest::set_prompt_logprobs>},
    {"return_expert_paths", FieldKind::kBool,
     "with --json: the experts that each token but the last went to, by MoE layer (default false)",
     &Store<&GenerateRequest::set_return_expert_paths>},
    {"skip_special_tokens", FieldKind::kBool, "leave special tokens out of the output text (default true)",
     &Store<&GenerateRequest::set_skip_special_tokens>},
    {"model", FieldKind::kText, kModelHelp, &Into<&GenerateRequest::mutable_model>},
    {"request_id", FieldKind::kText,
     "names the request in logs and for Abort, at most 128 bytes (default: drawn by the server)",
     &Into<&GenerateRequest::mutable_request_id>},
};

const RequestField<TokenizeRequest> kTokenizeFields[] = {
    {"text", FieldKind::kText, "the text to tokenize", &Into<&TokenizeRequest::mutable_text>},
    {"messages", FieldKind::kJson, kMessagesHelp, &SetMessages},
    {"tools", FieldKind::kJson, kToolsHelp, &SetTools},
    {"add_generation_prompt", FieldKind::kBool, kGenerationPromptHelp, &SetAddGenerationPrompt},
    {"template_args", FieldKind::kJson, kTemplateArgsHelp, &SetTemplateArgs},
    {"template_args_json", FieldKind::kText, "the same, under the name of the protobuf field", &SetTemplateArgs},
    {"add_special_tokens", FieldKind::kBool,
     "add the tokenizer's BOS and the like (default: true for text, false for messages)",
     &Store<&TokenizeRequest::set_add_special_tokens>},
    {"allow_special", FieldKind::kBool,
     "special tokens' names become those tokens (default: false for text, true for messages)",
     &Store<&TokenizeRequest::set_allow_special>},
    {"model", FieldKind::kText, kModelHelp, &Into<&TokenizeRequest::mutable_model>},
};

const RequestField<DetokenizeRequest> kDetokenizeFields[] = {
    {"token_ids", FieldKind::kIds, "the tokens: 5,9,11", &Into<&DetokenizeRequest::mutable_token_ids>},
    {"skip_special_tokens", FieldKind::kBool, "leave special tokens out of the text (default true)",
     &Store<&DetokenizeRequest::set_skip_special_tokens>},
    {"model", FieldKind::kText, kModelHelp, &Into<&DetokenizeRequest::mutable_model>},
};

// Checks that exactly one field holds the prompt, and that fields for messages come only with them.
template <class Request>
absl::Status CheckPrompt(const Json& object) {
  std::vector<const char*> prompts;
  int given = 0;
  for (const char* name : {"text", "token_ids", "messages"}) {
    if (!FindField(RequestFields<Request>(), name).ok()) continue;
    prompts.push_back(name);
    given += object.contains(name) ? 1 : 0;
  }
  if (given != 1) {
    return BadInput(absl::StrCat("exactly one of ", absl::StrJoin(prompts, ", "), " is needed, ", given, " given"));
  }
  for (const char* name : {"tools", "add_generation_prompt", "template_args", "template_args_json"}) {
    if (object.contains(name) && !object.contains("messages"))
      return BadInput(absl::StrCat(name, " goes with messages only"));
  }
  return absl::OkStatus();
}

}  // namespace

template <>
absl::Span<const RequestField<GenerateRequest>> RequestFields() {
  return kGenerateFields;
}
template <>
absl::Span<const RequestField<TokenizeRequest>> RequestFields() {
  return kTokenizeFields;
}
template <>
absl::Span<const RequestField<DetokenizeRequest>> RequestFields() {
  return kDetokenizeFields;
}

template <class Request>
absl::StatusOr<Request> BuildRequest(const Json& object) {
  if (!object.is_object()) return BadInput("a request must be a JSON object");
  Request request;
  for (const auto& [key, value] : object.items()) {
    const auto field = FindField(RequestFields<Request>(), key);
    if (!field.ok()) {
      const bool has_template = FindField(RequestFields<Request>(), "template_args").ok();
      return BadInput(absl::StrCat(field.status().message(),
                                   has_template ? "; arguments of the chat template go into template_args" : ""));
    }
    if (absl::Status status = (*field)->set(value, &request); !status.ok()) return InField(key, status);
  }
  RETURN_IF_ERROR(CheckPrompt<Request>(object));
  return request;
}

template absl::StatusOr<GenerateRequest> BuildRequest(const Json& object);
template absl::StatusOr<TokenizeRequest> BuildRequest(const Json& object);
template absl::StatusOr<DetokenizeRequest> BuildRequest(const Json& object);

}  // namespace switchyard::cli
