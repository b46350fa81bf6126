#include "server/api/convert.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "server/api/convert_constraint.h"
#include "server/api/convert_messages.h"
#include "server/api/model_names.h"

namespace switchyard::server {
namespace {

struct Range {
  double min;
  double max;
  bool open = false;  // without min itself
};

// Returns a field's value, else the model's default, else `otherwise`.  A value that is set must be within the range.
template <class Value, class Fallback>
absl::StatusOr<Value> Pick(const char* field, bool set, Value value, const std::optional<Fallback>& model_default,
                           Value otherwise, Range range) {
  if (!set) return model_default ? static_cast<Value>(*model_default) : otherwise;
  const double number = static_cast<double>(value);
  if (!(number >= range.min && number <= range.max) || (range.open && number == range.min)) {
    const std::string limit = absl::StrCat(range.open ? "(" : "[", range.min, ", ", range.max, "]");
    return rpc::BadField(field, absl::StrCat("must be within ", limit, ", is ", value), limit, absl::StrCat(value));
  }
  return value;
}

constexpr std::optional<double> kNone;

absl::Status ConvertLogitBias(const v1::SamplingParameters& in, const ConvertArgs& args,
                              batching::SamplingParams* out) {
  RETURN_IF_ERROR(CheckCount("sampling.logit_bias", in.logit_bias().size(), "entries", args.limits.max_logit_bias));
  for (const auto& [token, bias] : in.logit_bias()) {
    if (token < 0 || token >= args.model->vocab_size) {
      return rpc::BadField("sampling.logit_bias",
                           absl::StrCat("token ", token, " outside [0, ", args.model->vocab_size, ")"),
                           absl::StrCat(args.model->vocab_size), absl::StrCat(token));
    }
    if (!std::isfinite(bias))
      return rpc::BadField("sampling.logit_bias", "must be finite", "finite", absl::StrCat(bias));
    out->logit_bias.emplace_back(token, bias);
  }
  std::sort(out->logit_bias.begin(), out->logit_bias.end());
  return absl::OkStatus();
}

absl::Status ConvertSampling(const v1::SamplingParameters& in, const ConvertArgs& args, batching::SamplingParams* out) {
  const text::GenerationDefaults& defaults = args.text->defaults();
  ASSIGN_OR_RETURN(out->temperature, Pick("sampling.temperature", in.has_temperature(), in.temperature(),
                                          defaults.temperature, 1.0, {0, 100}));
  ASSIGN_OR_RETURN(out->top_p, Pick("sampling.top_p", in.has_top_p(), in.top_p(), defaults.top_p, 1.0,
                                    {.min = 0, .max = 1, .open = true}));
  ASSIGN_OR_RETURN(out->top_k, Pick("sampling.top_k", in.has_top_k(), in.top_k(), defaults.top_k, 0, {-1, 1e9}));
  out->top_k = std::max(out->top_k, 0);
  ASSIGN_OR_RETURN(out->min_p, Pick("sampling.min_p", in.has_min_p(), in.min_p(), defaults.min_p, 0.0, {0, 1}));
  ASSIGN_OR_RETURN(out->presence_penalty, Pick("sampling.presence_penalty", in.has_presence_penalty(),
                                               in.presence_penalty(), kNone, 0.0, {-2, 2}));
  ASSIGN_OR_RETURN(out->frequency_penalty, Pick("sampling.frequency_penalty", in.has_frequency_penalty(),
                                                in.frequency_penalty(), kNone, 0.0, {-2, 2}));
  ASSIGN_OR_RETURN(out->repetition_penalty,
                   Pick("sampling.repetition_penalty", in.has_repetition_penalty(), in.repetition_penalty(),
                        defaults.repetition_penalty, 1.0, {.min = 0, .max = 10, .open = true}));
  out->seed = in.has_seed() ? in.seed() : args.drawn_seed;
  return ConvertLogitBias(in, args, out);
}

absl::Status TooLong(const char* field, absl::string_view text, int32_t limit, int32_t actual) {
  return rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::PROMPT_TOO_LONG, text,
                        {{"field", field}, {"limit", absl::StrCat(limit)}, {"actual", absl::StrCat(actual)}});
}

absl::Status ConvertLengths(const v1::GenerateRequest& message, const ConvertArgs& args, InferenceRequest* out) {
  const int32_t context = args.model->max_model_len;
  const int32_t prompt = static_cast<int32_t>(out->prompt.size());
  if (prompt + 1 > context) {
    return TooLong(
        "prompt",
        absl::StrCat("prompt: ", prompt, " tokens and at least one to generate exceed the context of ", context),
        context, prompt);
  }
  if (message.has_max_tokens()) {
    const int32_t wanted = message.max_tokens();
    if (wanted < 1)
      return rpc::BadField("max_tokens", absl::StrCat("must be at least 1, is ", wanted), "1", absl::StrCat(wanted));
    if (int64_t{prompt} + wanted > context) {
      return TooLong("max_tokens", absl::StrCat("prompt ", prompt, " + max_tokens ", wanted, " > context ", context),
                     context - prompt, wanted);
    }
    out->max_tokens = wanted;
  } else {
    out->max_tokens = std::min(args.text->defaults().max_new_tokens.value_or(context), context - prompt);
  }
  ASSIGN_OR_RETURN(out->sampling.min_tokens,
                   Pick("min_tokens", message.has_min_tokens(), message.min_tokens(),
                        args.text->defaults().min_new_tokens, 0, {0.0, double(out->max_tokens)}));
  out->sampling.min_tokens = std::min(out->sampling.min_tokens, out->max_tokens);  // the model's default may exceed it
  return absl::OkStatus();
}

absl::Status ConvertExpertPaths(const v1::GenerateRequest& message, const ConvertArgs& args, InferenceRequest* out) {
  if (!message.return_expert_paths()) return absl::OkStatus();
  if (args.model->num_moe_layers < 1) {
    return rpc::BadField("return_expert_paths", absl::StrCat("model ", args.model->name, " has no layers of experts"),
                         "false", "true");
  }
  out->sampling.expert_paths_from = 0;
  out->num_moe_layers = args.model->num_moe_layers;
  out->top_k = args.model->experts_per_token;
  return absl::OkStatus();
}

template <class Ids>
absl::Status CheckTokenIds(const Ids& ids, const char* field, int32_t vocab) {
  for (int i = 0; i < static_cast<int>(ids.size()); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return rpc::BadField(absl::StrCat(field, "[", i, "]"), absl::StrCat(ids[i], " outside [0, ", vocab, ")"),
                           absl::StrCat("[0, ", vocab, ")"), absl::StrCat(ids[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status ConvertStops(const v1::GenerateRequest& message, const ConvertArgs& args, InferenceRequest* out) {
  const RequestLimits& limits = args.limits;
  RETURN_IF_ERROR(CheckCount("stop", message.stop_size(), "strings", limits.max_stop_strings));
  for (int i = 0; i < message.stop_size(); ++i) {
    const std::string& stop = message.stop(i);
    if (stop.empty() || stop.size() > limits.max_stop_bytes) {
      return rpc::BadField(absl::StrCat("stop[", i, "]"),
                           absl::StrCat("must have 1 to ", limits.max_stop_bytes, " bytes, has ", stop.size()),
                           absl::StrCat(limits.max_stop_bytes), absl::StrCat(stop.size()));
    }
    out->stop.push_back(stop);
  }
  // The model's own stop strings need a tokenizer.
  if (out->stop.empty() && args.text->has_tokenizer()) out->stop = args.text->defaults().stop_strings;
  if (!out->stop.empty() && !args.text->has_tokenizer()) {
    return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_TOKENIZER,
                          "stop: this model has no tokenizer; use stop_token_ids", {{"field", "stop"}});
  }
  RETURN_IF_ERROR(CheckCount("stop_token_ids", message.stop_token_ids_size(), "ids", 1024));
  RETURN_IF_ERROR(CheckTokenIds(message.stop_token_ids(), "stop_token_ids", args.model->vocab_size));
  std::vector<int32_t>& ids = out->sampling.stop_ids;
  ids.assign(message.stop_token_ids().begin(), message.stop_token_ids().end());
  if (!message.ignore_eos()) ids.insert(ids.end(), args.model->eos_token_ids.begin(), args.model->eos_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Encode(const char* field, const std::string& text,
                                            tokenizer::EncodeOptions options, const ConvertArgs& args) {
  options.cancelled = args.cancelled;
  absl::StatusOr<std::vector<int32_t>> ids = args.text->Encode(text, options);
  if (absl::IsResourceExhausted(ids.status())) return TextLimit(field, ids.status());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> ConvertPrompt(const v1::GenerateRequest& message, const ConvertArgs& args) {
  switch (message.prompt_case()) {
    case v1::GenerateRequest::kTokenIds: {
      RETURN_IF_ERROR(CheckTokenIds(message.token_ids().ids(), "token_ids", args.model->vocab_size));
      return std::vector<int32_t>(message.token_ids().ids().begin(), message.token_ids().ids().end());
    }
    case v1::GenerateRequest::kText: {
      RETURN_IF_ERROR(CheckCount("text", message.text().size(), "bytes", args.limits.max_prompt_bytes));
      const bool add_special = !message.has_add_special_tokens() || message.add_special_tokens();
      return Encode("text", message.text(), {add_special, message.allow_special()}, args);
    }
    case v1::GenerateRequest::kMessages: {
      ASSIGN_OR_RETURN(std::string text, RenderMessages(message.messages(), args));
      if (args.output != nullptr) text += args.output->BeginOutput(text);
      // As in HuggingFace: the template has written the special tokens' names, so the text is encoded with them.
      return Encode("messages", text, {message.add_special_tokens(), /*allow_special=*/true}, args);
    }
    default:
      return rpc::BadField("prompt", "exactly one of text, token_ids, messages required", "1", "0");
  }
}

// The longest message that gRPC's clients accept by default.
constexpr size_t kMostAnswerBytes = 4 << 20;

// Checks the answer's size before it is made, as it may be several times the text.
absl::Status CheckAnswerBytes(const char* field, const std::vector<int32_t>& ids, const std::string& rendered,
                              const text::TextProcessor& text) {
  using Coded = google::protobuf::io::CodedOutputStream;
  constexpr size_t kHeads = 16;  // of the two other fields
  size_t bytes = kHeads + rendered.size();
  for (const int32_t id : ids) {
    const size_t spelled = text.TokenText(id).size();
    bytes += Coded::VarintSize32(static_cast<uint32_t>(id)) + 1 + Coded::VarintSize32(static_cast<uint32_t>(spelled)) +
             spelled;
  }
  if (bytes <= kMostAnswerBytes) return absl::OkStatus();
  const std::string limit = absl::StrCat(kMostAnswerBytes), actual = absl::StrCat(bytes);
  return rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::TEXT_LIMIT,
                        absl::StrCat(field, ": the answer would be of ", actual, " bytes, limit ", limit,
                                     ", which is what clients take; send the text in parts"),
                        {{"field", field}, {"limit", limit}, {"actual", actual}});
}

}  // namespace

absl::Status CheckModelName(const std::string& name, const ServedModel& model) {
  return FindAdapter(name, model).status();
}

absl::StatusOr<std::unique_ptr<InferenceRequest>> ConvertGenerate(const v1::GenerateRequest& message,
                                                                  const ConvertArgs& args) {
  ASSIGN_OR_RETURN(const int32_t adapter, FindAdapter(message.model(), *args.model));
  const RequestLimits& limits = args.limits;
  RETURN_IF_ERROR(CheckCount("request_id", message.request_id().size(), "bytes", limits.max_request_id_bytes));
  auto out = std::make_unique<InferenceRequest>();
  out->adapter = adapter;
  out->request_id = message.request_id().empty() ? args.drawn_id : message.request_id();
  out->arrival = args.now;
  out->deadline = args.deadline;
  out->has_text = args.text->has_tokenizer();
  out->skip_special_tokens = !message.has_skip_special_tokens() || message.skip_special_tokens();
  RETURN_IF_ERROR(ConvertSampling(message.sampling(), args, &out->sampling));
  ASSIGN_OR_RETURN(out->num_choices,
                   Pick("n", message.has_n(), message.n(), kNone, 1, {1.0, double(limits.max_choices)}));
  ASSIGN_OR_RETURN(out->sampling.num_logprobs, Pick("logprobs", message.has_logprobs(), message.logprobs(), kNone, -1,
                                                    {0.0, double(limits.max_logprobs)}));
  ASSIGN_OR_RETURN(out->sampling.num_prompt_logprobs,
                   Pick("prompt_logprobs", message.has_prompt_logprobs(), message.prompt_logprobs(), kNone, -1,
                        {0.0, double(limits.max_logprobs)}));
  RETURN_IF_ERROR(ConvertExpertPaths(message, args, out.get()));
  RETURN_IF_ERROR(ConvertStops(message, args, out.get()));
  ASSIGN_OR_RETURN(out->prompt, ConvertPrompt(message, args));
  // A tokenizer may have more tokens than the model's vocabulary.
  RETURN_IF_ERROR(CheckTokenIds(out->prompt, "prompt", args.model->vocab_size));
  if (out->prompt.empty()) return rpc::BadField("prompt", "is empty: at least one token is needed", "1", "0");
  RETURN_IF_ERROR(ConvertLengths(message, args, out.get()));
  RETURN_IF_ERROR(ConvertConstraint(message, args, out.get()));  // last, as it is the most work
  return out;
}

absl::StatusOr<v1::TokenizeResponse> ConvertTokenize(const v1::TokenizeRequest& message, const ConvertArgs& args) {
  RETURN_IF_ERROR(CheckModelName(message.model(), *args.model));
  v1::TokenizeResponse response;
  std::string text;
  const bool is_chat = message.input_case() == v1::TokenizeRequest::kMessages;
  const char* const field = is_chat ? "messages" : "text";
  if (is_chat) {
    ASSIGN_OR_RETURN(text, RenderMessages(message.messages(), args));
    if (args.output != nullptr) text += args.output->BeginOutput(text);
    response.set_rendered_text(text);
  } else if (message.input_case() == v1::TokenizeRequest::kText) {
    text = message.text();
    RETURN_IF_ERROR(CheckCount("text", text.size(), "bytes", args.limits.max_prompt_bytes));
  } else {
    return rpc::BadField("input", "exactly one of text, messages required", "1", "0");
  }
  const bool add_special = message.has_add_special_tokens() ? message.add_special_tokens() : !is_chat;
  const bool allow_special = message.has_allow_special() ? message.allow_special() : is_chat;
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, Encode(field, text, {add_special, allow_special}, args));
  RETURN_IF_ERROR(CheckAnswerBytes(field, ids, response.rendered_text(), *args.text));
  for (int32_t id : ids) {
    response.add_token_ids(id);
    response.add_tokens(args.text->TokenText(id));
  }
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> ConvertDetokenize(const v1::DetokenizeRequest& message,
                                                         const ConvertArgs& args) {
  RETURN_IF_ERROR(CheckModelName(message.model(), *args.model));
  RETURN_IF_ERROR(CheckTokenIds(message.token_ids(), "token_ids", args.model->vocab_size));
  const bool skip = !message.has_skip_special_tokens() || message.skip_special_tokens();
  v1::DetokenizeResponse response;
  ASSIGN_OR_RETURN(*response.mutable_text(),
                   args.text->Decode({message.token_ids().begin(), message.token_ids().end()}, skip));
  return response;
}

}  // namespace switchyard::server
