// Turns a model's output into content, reasoning and tool calls, piece by piece as it streams.
//
// Thread-compatible: one parser for each choice.  Pure: no clock, no I/O.  The time is linear in the output, the memory
// bounded by `max_held_bytes` and what the caller leaves in its list of events.
//
// What it promises, whatever the output is:
//   - How the output is cut into pieces changes only how text is cut into events.
//   - Text goes on as soon as it can be no marker, in order, and byte by byte as it came, UTF-8 or not.  Not part of it
//     are markers, and white space alone between two markers, behind the last one, or before the first call.
//   - A call is complete (kToolEnd) only if it has a name and its arguments, put together, are one JSON object (if the
//     output is valid UTF-8).  A control character within a JSON string, which JSON forbids, becomes an escape.
//   - What looks like a call and is none is content, with its markers.  Where this shows only behind kToolBegin (the
//     arguments turn wrong, or the output ends within them), kToolEnd says that the call is not complete, and what
//     follows is content.  With `whole_calls` there is no such call: an incomplete one is content as a whole.
//
// Arguments stream as the model writes them, but for values in Qwen3-Coder's, GLM's and MiniMax's formats that are no
// texts, which come when they end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/text/output/calls/tool_types.h"
#include "server/text/output/formats/output_format.h"
#include "server/text/output/output_event.h"
#include "server/text/output/reasoning_tokens.h"

namespace switchyard::text {

struct OutputOptions {
  // The tools of the request.  Without tools (or with tool_choice "none": give none) calls are content.
  ToolTypes tools = {};
  bool whole_calls = false;                             // for an answer that does not stream
  ReasoningStart reasoning = ReasoningStart::kMayOpen;  // of ReasoningAfterPrompt
  size_t max_held_bytes = 1 << 20;
};

// What reads one kind of format, byte by byte.
class OutputReader {
 public:
  // `events` is borrowed.
  explicit OutputReader(EventList* events) : events_(events) {}
  virtual ~OutputReader() = default;
  virtual void Take(absl::string_view text) = 0;
  virtual void Finish() = 0;
  ReasoningTokens* tokens() { return &tokens_; }

 protected:
  // Adds content or reasoning that ends `behind` bytes before the place that was read to.
  void AddText(OutputEvent::Kind kind, absl::string_view text, size_t behind = 0) {
    events_->Text(kind, -1, text);
    tokens_.Show(read_ - behind - text.size(), read_ - behind, kind == OutputEvent::Kind::kReasoning);
  }

  size_t read_ = 0;  // bytes of the output; those that are read again count once

 private:
  EventList* const events_;
  ReasoningTokens tokens_;
};

class OutputParser {
 public:
  // Text that the caller wrote into the prompt as the beginning of this output (tool_choice.h) is pushed first.
  OutputParser(const OutputFormat& format, OutputOptions options);

  OutputParser(const OutputParser&) = delete;
  OutputParser& operator=(const OutputParser&) = delete;

  // Appends the events of the next piece.
  void Push(absl::string_view text, std::vector<OutputEvent>* events);
  // Appends what was held back.  Nothing may be pushed afterwards.
  void Finish(std::vector<OutputEvent>* events);

  // Says that a token's text begins `at` bytes behind the beginning of all that is pushed.  REQUIRES: as
  // ReasoningTokens::Add; so a token comes before its text.
  void AddToken(size_t at) { reader_->tokens()->Add(at); }
  // Of these tokens, those whose first byte was shown as reasoning so far.  Markers are no reasoning.
  int64_t reasoning_tokens() const { return reader_->tokens()->count(); }

 private:
  void MoveTo(std::vector<OutputEvent>* events);

  const OutputOptions options_;
  std::vector<OutputEvent> ready_;
  EventList list_{&ready_};
  std::unique_ptr<OutputReader> reader_;
};

}  // namespace switchyard::text
