#include "server/text/output/channel_output.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "server/text/output/calls/json_scanner.h"

namespace switchyard::text {
namespace {

constexpr size_t kMaxHeaderBytes = 1024;
constexpr absl::string_view kChannel = "<|channel|>", kMessage = "<|message|>", kRecipient = "to=";

// What each state looks for.
constexpr absl::string_view kBoundaries[] = {"<|start|>", kChannel, "<|end|>", "<|return|>", "<|call|>"};
constexpr absl::string_view kFirstBoundaries[] = {"<|start|>", kChannel,   "<|end|>", "<|return|>",
                                                  "<|call|>",  kRecipient, kMessage};
constexpr absl::string_view kHeaderMarkers[] = {kMessage, "<|end|>", "<|return|>", "<|call|>"};

bool BeginsHeader(absl::string_view marker) {
  return marker == "<|start|>" || marker == kChannel || marker == kRecipient;
}

// What is behind `key` in a header, up to white space or a marker.
absl::string_view WordBehind(absl::string_view header, absl::string_view key) {
  const size_t at = header.find(key);
  if (at == absl::string_view::npos) return "";
  header.remove_prefix(at + key.size());
  return header.substr(0, header.find_first_of(" \t\r\n<"));
}

}  // namespace

ChannelOutput::ChannelOutput(const OutputOptions& options, EventList* events)
    : OutputReader(events),
      options_(options),
      call_(**FindToolFormat("openai"), options.tools, options.whole_calls, options.max_held_bytes, events) {
  Watch(State::kBetween);
}

void ChannelOutput::Watch(State state) {
  state_ = state;
  if (state == State::kBetween) kind_ = OutputEvent::Kind::kContent;
  if (state == State::kHeader) {
    matcher_.Watch(kHeaderMarkers);
  } else if (at_output_start_) {
    matcher_.Watch(kFirstBoundaries);
  } else {
    matcher_.Watch(kBoundaries);
  }
}

void ChannelOutput::Take(absl::string_view text) {
  while (!text.empty()) {
    if (state_ == State::kText && matcher_.held().empty()) {
      const size_t plain = std::min(text.find('<'), text.size());
      read_ += plain;
      Show(text.substr(0, plain));
      text.remove_prefix(plain);
      if (text.empty()) return;
    }
    TakeByte(text.front());
    text.remove_prefix(1);
  }
}

void ChannelOutput::TakeByte(char byte) {
  ++read_;
  if (state_ == State::kCall) return TakeInCall(byte);
  const bool skips_space = state_ == State::kBetween || state_ == State::kCallStart;
  if (skips_space && matcher_.held().empty() && IsJsonSpace(byte)) {
    header_ += byte;  // shown if this turns out to be no call, or text
    if (header_.size() > kMaxHeaderBytes) TakeNone("");
    return;
  }
  switch (matcher_.Take(byte)) {
    case MarkerMatcher::Step::kHeld:
      return;
    case MarkerMatcher::Step::kFound:
      return TakeMarker(matcher_.TakeHeld());
    default:
      return TakeNone(matcher_.TakeHeld());
  }
}

void ChannelOutput::TakeMarker(absl::string_view marker) {
  at_output_start_ = false;
  if (state_ == State::kHeader) {
    header_.append(marker.data(), marker.size());
    if (marker == kMessage) return BeginMessage();
    Show(header_);  // ended before its message began
    header_.clear();
    return Watch(State::kBetween);
  }
  if (state_ == State::kCallStart) call_.EndEmpty(function_);
  header_.clear();
  if (marker == kMessage) return BeginMessage();
  if (!BeginsHeader(marker)) return Watch(State::kBetween);
  header_ = std::string(marker);
  Watch(State::kHeader);
}

// `bytes` begin no marker.
void ChannelOutput::TakeNone(const std::string& bytes) {
  at_output_start_ = false;
  const size_t taken = state_ == State::kCallStart ? 0 : std::min<size_t>(1, bytes.size());
  read_ -= bytes.size() - taken;
  if (state_ == State::kHeader) {
    header_.append(bytes, 0, taken);
    if (header_.size() > kMaxHeaderBytes) {
      Show(header_);
      header_.clear();
      Watch(State::kText);
    }
  } else if (state_ == State::kCallStart) {
    call_.Start(header_, 0, false, function_);
    header_.clear();
    state_ = State::kCall;
  } else {
    if (state_ == State::kBetween) Show(header_, taken);
    header_.clear();
    Watch(State::kText);
    Show(absl::string_view(bytes).substr(0, taken));
  }
  for (const char byte : bytes.substr(taken)) TakeByte(byte);
}

void ChannelOutput::BeginMessage() {
  const absl::string_view recipient = WordBehind(header_, kRecipient);
  kind_ = WordBehind(header_, kChannel) == "analysis" ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent;
  absl::string_view function = recipient;
  const bool names_function = absl::ConsumePrefix(&function, "functions.") || options_.tools.Knows(function);
  const bool is_call =
      names_function && !options_.tools.empty() && !function.empty() && function.size() <= kMaxNameBytes;
  function_ = std::string(function);
  if (!is_call) header_.clear();
  Watch(is_call ? State::kCallStart : State::kText);
}

void ChannelOutput::TakeInCall(char byte) {
  const CallStatus status = call_.Take(byte);
  if (status == CallStatus::kDone) Watch(State::kBetween);
  if (status == CallStatus::kFailed) Break();
}

// What was begun is no call, or not to its end.
void ChannelOutput::Break() {
  const CallAttempt::Broken broken = call_.Break();
  kind_ = OutputEvent::Kind::kContent;
  Watch(State::kText);
  read_ -= broken.again.size();
  Show(broken.text);
  for (const char byte : broken.again) TakeByte(byte);
}

void ChannelOutput::Finish() {
  if (state_ == State::kCall) Break();
  // A header that the end cuts is no text.  White space is, if there is nothing else.
  const bool is_header = state_ == State::kHeader && absl::StartsWith(header_, "<|");
  if (!is_header && (state_ != State::kBetween || at_output_start_ || !matcher_.held().empty()))
    Show(header_, matcher_.held().size());
  if (!is_header) Show(matcher_.TakeHeld());
}

}  // namespace switchyard::text
