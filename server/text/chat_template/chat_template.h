// A Jinja2 chat template: messages in, prompt text out, byte for byte as HuggingFace's transformers renders it.
//
// Immutable and thread-safe after Parse; cheap to copy (copies share the parsed tree).  Sandboxed: a template reaches
// the variables it is given, a fixed list of filters, tests, methods and functions, and nothing else; it cannot change
// its input, and its time, memory, depth and output are bounded by ChatTemplateLimits.  Does not tokenize, and does not
// add special tokens: the template writes them itself.
//
// The language: see README.md.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/text/chat_template/limits.h"

namespace switchyard::text {

// What strftime_now() says, and when rendering has to end.
struct ChatTemplateClock {
  absl::Time now;
  absl::TimeZone zone;  // default: UTC
  // Asked every few thousand steps; an error ends the render with it.  None: nothing but the limits ends it.
  std::function<absl::Status()> must_end = nullptr;
};

// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
};

struct RenderedChat {
  std::string text;
  // What `{% generation %}` blocks wrote, which is what the model is to write: rising.  Empty without such blocks, and
  // if one of them is inside a macro or a block `set`.
  std::vector<TextSpan> generated;
};

class ChatTemplate {
 public:
  // INVALID_ARGUMENT "chat template: … (line N)" when the text is no template.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source, const ChatTemplateLimits& limits = {});

  // `variables` is an object: what the template sees by name.  Errors, all "chat template: … (line N)":
  //   INVALID_ARGUMENT    the template failed on these variables; raise_exception's message comes first
  //   RESOURCE_EXHAUSTED  a limit
  //   any other           what clock.must_end gave
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables, const ChatTemplateClock& clock) const;
  // The same, and what of it the model is to write.
  absl::StatusOr<RenderedChat> RenderChat(const nlohmann::ordered_json& variables,
                                          const ChatTemplateClock& clock) const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const Parsed> parsed_;  // shared by this template's copies
};

}  // namespace switchyard::text
