// What OpenAI's requests have in common, and the names that vLLM adds to them.
//
// Members that are unknown are ignored, as other servers do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/http/json_fields.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::server {

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;     // one more event, with the usage
  bool continuous_usage = false;  // in each event
};

// Reads everything but prompt, lengths and logprobs into `message`: model, sampling, stops, n, tokens that are shown,
// and the constraint, whose member is set in *constraint_field.
absl::Status ReadCommon(const JsonFields& fields, v1::GenerateRequest* message, std::string* constraint_field);
// Sets response_format in `to` as chat completions have it, from the form of newer APIs, {"type", "schema"}.  `path`:
// the place of `format`, for errors.  REQUIRES: `format` is an object.
absl::Status ConvertFormat(const JsonFields::Json& format, const std::string& path, JsonFields::Json* to);
absl::Status ReadStreamOptions(const JsonFields& fields, StreamOptions* options);
// Fails if a member is set to anything but null, false, 0, or an empty string, array or object.
absl::Status RefuseSet(const JsonFields& fields, const char* key, absl::string_view why);

// Usage of several generations, and its JSON.
struct UsageSum {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  std::optional<int64_t> reasoning_tokens = std::nullopt;  // of chats
  JsonFields::Json ToJson() const;
};

// "stop", "length" or "abort".
const char* FinishName(v1::FinishReason reason);
// vLLM's `stop_reason`: the stop string or token, or null.
JsonFields::Json StopReason(const v1::Finish& finish);

// vLLM's `prompt_logprobs`: null for the first token, then for each an object of the tokens by id.
JsonFields::Json PromptLogprobs(const std::vector<v1::PositionLogprobs>& positions);

// "chatcmpl-" and the like with the generation's id.
std::string ResponseId(absl::string_view prefix, absl::string_view request_id);

// An event of a stream: "data: {...}\n\n".
std::string Event(const JsonFields::Json& data);
inline constexpr char kDone[] = "data: [DONE]\n\n";

// Events of one choice, which are most of a stream: written as text, since an object for each costs more than the
// token. The members of an object, as JSON without its braces.
std::string MembersText(const JsonFields::Json& object);
// What a choice has used so far, for vLLM's `continuous_usage_stats`.
struct ChoiceUsage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
};
// The event whose members are `head`, the one choice with the members `choice`, and the usage that `options` ask for.
std::string ChoiceEvent(absl::string_view head, absl::string_view choice, const StreamOptions& options,
                        const ChoiceUsage& usage);

}  // namespace switchyard::server
