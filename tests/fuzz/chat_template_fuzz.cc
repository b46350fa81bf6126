// A chat template and, behind a NUL, its variables as JSON.  It renders the same twice, UTF-8 if it is, within its
// limits; `generated` spans lie in the text.
#include "scheduler/base/text/strict_json.h"
#include "server/text/chat_template/chat_template.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

constexpr text::ChatTemplateLimits kLimits = {.max_source_bytes = 1 << 16,
                                              .max_nesting = 200,
                                              .max_steps = 50'000,
                                              .max_depth = 400,
                                              .max_value_depth = 100,
                                              .max_value_bytes = 1 << 18,
                                              .max_allocated_bytes = 4 << 20,
                                              .max_output_bytes = 1 << 18,
                                              .max_range = 1000};
constexpr absl::string_view kVariables =
    R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hé\n <b>"},)"
    R"({"role":"assistant","content":"x","tool_calls":[{"function":{"name":"f","arguments":{"a":[1,2.5,null]}}}]}],)"
    R"("tools":[{"name":"f"}],"add_generation_prompt":true,"bos_token":"<s>","eos_token":"</s>","n":3})";

}  // namespace

void Fuzz(absl::string_view input) {
  const auto [source, json] = CutAtNul(input);
  const auto parsed = text::ChatTemplate::Parse(source, kLimits);
  CheckSameEnd(parsed, text::ChatTemplate::Parse(source, kLimits));
  if (!parsed.ok()) return;
  nlohmann::ordered_json variables;
  if (ReadJson(json, LenientJson(100), &variables) || !variables.is_object()) {
    SY_CHECK(!ReadJson(kVariables, LenientJson(100), &variables));
  }
  const text::ChatTemplateClock clock = {absl::FromUnixSeconds(1'700'000'000), absl::UTCTimeZone()};
  const auto chat = parsed->RenderChat(variables, clock);
  CheckSameEnd(chat, parsed->RenderChat(variables, clock));
  if (!chat.ok()) {
    SY_CHECK(chat.status().code() == absl::StatusCode::kInvalidArgument ||
             chat.status().code() == absl::StatusCode::kResourceExhausted);
    return;
  }
  SY_CHECK_LE(chat->text.size(), kLimits.max_output_bytes);
  if (FindInvalidUtf8(source) == absl::string_view::npos) {
    SY_CHECK_EQ(FindInvalidUtf8(chat->text), absl::string_view::npos);
  }
  for (const text::TextSpan& span : chat->generated) {
    SY_CHECK(span.begin <= span.end && span.end <= chat->text.size());
  }
}

}  // namespace switchyard::fuzz
