// Output in harmony's format (gpt-oss): messages in channels.
//
//   <|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>
//   <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
//
// The recipient (to=) may also be in the part before the channel, and a tool of the request without "functions.".  A
// message to another recipient (a built-in tool) is reasoning in the channel analysis, else content.  Commentary
// without a recipient is content: it is meant to be seen.  What is in no message is content.  Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "server/text/output/calls/call_attempt.h"
#include "server/text/output/calls/marker_matcher.h"
#include "server/text/output/output_event.h"
#include "server/text/output/output_parser.h"

namespace switchyard::text {

class ChannelOutput final : public OutputReader {
 public:
  // Both are borrowed.
  ChannelOutput(const OutputOptions& options, EventList* events);

  void Take(absl::string_view text) override;
  void Finish() override;

 private:
  enum class State : uint8_t {
    kBetween,  // messages
    kHeader,
    kText,
    kCallStart,  // behind the header of a call
    kCall,
  };

  void TakeByte(char byte);
  void TakeMarker(absl::string_view marker);
  void TakeNone(const std::string& bytes);
  void TakeInCall(char byte);
  void BeginMessage();
  void Break();
  void Watch(State state);
  void Show(absl::string_view text, size_t behind = 0) { AddText(kind_, text, behind); }

  const OutputOptions& options_;
  CallAttempt call_;
  State state_ = State::kBetween;
  MarkerMatcher matcher_;
  bool at_output_start_ = true;  // the prompt has the beginning of the first header
  std::string header_;           // with its markers
  std::string function_;         // whose call it is
  OutputEvent::Kind kind_ = OutputEvent::Kind::kContent;
};

}  // namespace switchyard::text
