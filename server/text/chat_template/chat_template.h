// A Jinja2 chat template: messages in, prompt text out, byte for byte as HuggingFace's transformers renders it.
//
// Immutable and thread-safe after Parse; cheap to copy (copies share the parsed tree).  Sandboxed: a template can use
// its variables and a fixed list of filters, tests, methods and functions, and nothing else; it cannot change its
// input, and ChatTemplateLimits bounds its time, memory, depth and output.  Does not tokenize, and does not add special
// tokens: the template writes them itself.
//
// README.md describes the language.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace switchyard::text {

// Bounds the cost of one template.  Templates come with models and are untrusted code: every bound is hard, and
// exceeding it is an error (RESOURCE_EXHAUSTED), never a crash.  The defaults are far above the needs of published
// templates.
struct ChatTemplateLimits {
  size_t max_source_bytes = 1 << 20;       // the template's text
  int max_nesting = 200;                   // parse: brackets, operators and blocks within each other
  int64_t max_steps = 20'000'000;          // render: nodes, items, 64 bytes of text copied or 16 read by character
  int max_depth = 400;                     // render: expressions, blocks and macro calls within each other
  int max_value_depth = 100;               // lists and dicts within each other, in the input too
  size_t max_value_bytes = 64 << 20;       // one string or list
  size_t max_allocated_bytes = 512 << 20;  // everything that a render allocates, freed or not
  size_t max_output_bytes = 64 << 20;      // the rendered text
  int64_t max_range = 100'000;             // items of range(), as in Jinja2's sandbox
};

// The time that strftime_now() prints, and a callback that may end rendering.
struct ChatTemplateClock {
  absl::Time now;
  absl::TimeZone zone;  // default: UTC
  // Called every few thousand steps; its error ends the render.  Empty: only the limits end it.
  std::function<absl::Status()> must_end = nullptr;
};

// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
};

struct RenderedChat {
  std::string text;
  // The spans of `{% generation %}` blocks (the assistant's text), in order.  Empty without such blocks, and if one of
  // them is inside a macro or a block `set`.
  std::vector<TextSpan> generated;
};

class ChatTemplate {
 public:
  // INVALID_ARGUMENT "chat template: … (line N)" if the text is not a template.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source, const ChatTemplateLimits& limits = {});

  const std::string& source() const;

  // `variables` is an object: the template's variables by name.  Errors, all "chat template: … (line N)":
  //   INVALID_ARGUMENT    the template failed on these variables; raise_exception's message comes first
  //   RESOURCE_EXHAUSTED  a limit
  //   any other           clock.must_end's error
  absl::StatusOr<RenderedChat> RenderChat(const nlohmann::ordered_json& variables,
                                          const ChatTemplateClock& clock) const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const Parsed> parsed_;  // shared by this template's copies
};

}  // namespace switchyard::text
