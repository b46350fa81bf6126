// A choice's output as the parts that APIs of chats have: reasoning, text and tool calls, one after the other.
//
// Thread-compatible; one for each choice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/text/output/output_parser.h"
#include "server/text/tokenizer/stream_decoder.h"
#include "server/text/tokenizer/tokenizer.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::server {

struct OutputPart {
  enum class Kind : uint8_t { kText, kReasoning, kCall };

  Kind kind = Kind::kText;
  std::string text = {};  // of a call: its arguments, as JSON
  std::string name = {};  // of the called function
  std::string id = {};    // of the call
  bool is_whole = true;   // of a call: its arguments are one JSON object
};

class AssistantOutput {
 public:
  // What happens to a part; any may be empty.
  struct Events {
    std::function<void(size_t index, const OutputPart& part)> on_begin = {};
    std::function<void(size_t index, const OutputPart& part, absl::string_view text)> on_text = {};
    std::function<void(size_t index, const OutputPart& part)> on_end = {};
  };

  // `format` without formats: all is text.  `call_prefix` begins the ids of calls whose format writes none.
  AssistantOutput(const text::OutputFormat& format, text::OutputOptions options, std::string call_prefix);

  // Begins with text that is part of the prompt; what it makes is noticed with the first message.
  void Begin(std::string forced) { forced_ = std::move(forced); }
  // Leaves out calls behind the first one: where no constraint holds the output, the model may write several.
  void KeepOneCall() { one_call_ = true; }
  // Counts the tokens of messages by their text.  (Where a tokenizer gives text only at the end of an output, the place
  // of all tokens is its beginning.)  `tokenizer` is borrowed; null: none are counted. `skip_special_tokens`: as the
  // request has it.
  void CountReasoning(const tokenizer::Tokenizer* tokenizer, bool skip_special_tokens);
  // Adds the text of a message, and the end of the output if the message has it.
  void Add(const v1::GenerateResponse& message, const Events& events);
  const std::vector<OutputPart>& parts() const { return parts_; }
  // Whether there is a call whose arguments are whole.
  bool has_calls() const;
  std::string TextOf(OutputPart::Kind kind) const;  // of all parts of that kind
  // Tokens so far whose text began in a part of reasoning.
  int64_t reasoning_tokens() const { return parser_ == nullptr ? 0 : parser_->reasoning_tokens(); }

 private:
  void PlaceTokens(const v1::GenerateResponse& message);
  void Handle(const std::vector<text::OutputEvent>& list, const Events& events);
  void BeginPart(OutputPart part, const Events& events);
  void Append(OutputPart::Kind kind, absl::string_view text, const Events& events);
  void EndPart(const Events& events);

  const std::string call_prefix_;
  const bool may_reason_;  // the format has reasoning
  bool one_call_ = false;
  std::string forced_;
  std::unique_ptr<text::OutputParser> parser_;  // null: all is text
  std::vector<OutputPart> parts_;
  bool is_open_ = false;  // the last part

  const tokenizer::Tokenizer* tokenizer_ = nullptr;
  bool skip_special_tokens_ = true;
  std::optional<tokenizer::StreamDecoder> decoder_;  // of the tokens again: none are counted without it
  size_t place_ = 0;                                 // behind the decoded text, in what is pushed to the parser
};

}  // namespace switchyard::server
