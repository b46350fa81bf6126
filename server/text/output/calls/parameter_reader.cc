#include "server/text/output/calls/parameter_reader.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/text/output/calls/json_scanner.h"

namespace switchyard::text {

ParameterReader::ParameterReader(const ParameterSyntax& syntax, const ToolTypes& types, CallSink* sink)
    : syntax_(syntax), types_(types), sink_(sink) {}

void ParameterReader::Start(absl::string_view name, absl::string_view id) {
  name_ = std::string(name);
  id_ = std::string(id);
  began_ = has_parameters_ = false;
  (void)matcher_.TakeHeld();
  Watch(State::kBetween);
}

void ParameterReader::Watch(State state) {
  state_ = state;
  switch (state) {
    case State::kBetween:
      markers_ = {syntax_.key_open, syntax_.end};
      break;
    case State::kKey:
      markers_ = {syntax_.key_close};
      break;
    case State::kBeforeValue:
      markers_ = {syntax_.value_open};
      break;
    case State::kValue:
      markers_ = {syntax_.value_close};
      if (syntax_.may_miss_close) markers_.insert(markers_.end(), {syntax_.key_open, syntax_.end});
      break;
  }
  matcher_.Watch(markers_);
}

CallStatus ParameterReader::Take(char byte) {
  const bool skips_space = state_ == State::kBetween || state_ == State::kBeforeValue;
  if (skips_space && matcher_.held().empty() && IsJsonSpace(byte)) return CallStatus::kMore;
  switch (matcher_.Take(byte)) {
    case MarkerMatcher::Step::kHeld:
      return CallStatus::kMore;
    case MarkerMatcher::Step::kFound:
      return TakeMarker(markers_[matcher_.found()]);
    default:
      return TakeNone();
  }
}

CallStatus ParameterReader::TakeMarker(absl::string_view marker) {
  (void)matcher_.TakeHeld();
  if (state_ == State::kKey) return EndKey();
  if (state_ == State::kBeforeValue) {
    BeginValue();
    return CallStatus::kMore;
  }
  if (state_ == State::kValue) {
    EndValue();
    Watch(State::kBetween);
    if (marker == syntax_.value_close) return CallStatus::kMore;
  }
  if (!std::exchange(began_, true)) sink_->Begin(name_, id_);
  return marker == syntax_.end ? EndCall() : BeginKey();
}

// What is held begins no marker.
CallStatus ParameterReader::TakeNone() {
  if (state_ == State::kBetween || state_ == State::kBeforeValue) return CallStatus::kFailed;
  const std::string bytes = matcher_.TakeHeld();
  if (state_ == State::kValue) {
    TakeValueByte(bytes.front());
  } else {
    key_ += bytes.front();
    if (key_.size() > kMaxNameBytes) return CallStatus::kFailed;
  }
  // The rest is shorter than a marker, and begins none here or later than the first byte.
  for (const char byte : bytes.substr(1)) {
    if (const CallStatus status = Take(byte); status != CallStatus::kMore) return status;
  }
  return CallStatus::kMore;
}

CallStatus ParameterReader::BeginKey() {
  key_.clear();
  Watch(State::kKey);
  return CallStatus::kMore;
}

CallStatus ParameterReader::EndKey() {
  key_ = std::string(absl::StripAsciiWhitespace(key_));
  if (key_.empty()) return CallStatus::kFailed;
  if (syntax_.value_open.empty()) {
    BeginValue();
  } else {
    Watch(State::kBeforeValue);
  }
  return CallStatus::kMore;
}

void ParameterReader::BeginValue() {
  Watch(State::kValue);
  value_types_ = types_.TypesOf(name_, key_);
  is_text_ = value_types_.only_text() || (value_types_.unknown() && syntax_.unknown_is_text);
  at_first_byte_ = true;
  line_feed_ = false;
  value_.clear();
  sink_->Arguments(
      absl::StrCat(std::exchange(has_parameters_, true) ? ", " : "{", JsonString(key_), ": ", is_text_ ? "\"" : ""));
}

void ParameterReader::TakeValueByte(char byte) {
  if (std::exchange(at_first_byte_, false) && syntax_.trims_newlines && byte == '\n') return;
  if (!is_text_) {
    value_ += byte;
    return;
  }
  std::string json;
  if (std::exchange(line_feed_, false)) json = "\\n";
  if (byte == '\n' && syntax_.trims_newlines) {
    line_feed_ = true;
  } else {
    AppendJsonEscaped(absl::string_view(&byte, 1), &json);
  }
  if (!json.empty()) sink_->Arguments(json);
}

void ParameterReader::EndValue() {
  if (is_text_) {
    sink_->Arguments("\"");
    return;
  }
  absl::string_view value = value_;
  if (syntax_.trims_newlines) value = absl::StripSuffix(value, "\n");
  sink_->Arguments(JsonOfValue(value, value_types_, syntax_.unknown_is_text));
}

CallStatus ParameterReader::EndCall() {
  sink_->Arguments(has_parameters_ ? "}" : "{}");
  sink_->End();
  return CallStatus::kDone;
}

}  // namespace switchyard::text
