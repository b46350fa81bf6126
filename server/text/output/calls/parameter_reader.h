// Reads arguments that are written as keys and values between markers (ParameterSyntax), and makes JSON of them.
//
// A text goes on as it comes; a value of another type is held until it ends, as only then its type is sure.
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/text/output/calls/call_sink.h"
#include "server/text/output/calls/marker_matcher.h"
#include "server/text/output/calls/tool_types.h"
#include "server/text/output/formats/output_format.h"

namespace switchyard::text {

class ParameterReader {
 public:
  // All are borrowed.
  ParameterReader(const ParameterSyntax& syntax, const ToolTypes& types, CallSink* sink);

  // Begins the arguments of a call of `name`.  The sink gets the call with the first marker.
  void Start(absl::string_view name, absl::string_view id);
  CallStatus Take(char byte);
  // Bytes that may still be of a marker.
  size_t held() const { return matcher_.held().size(); }

 private:
  enum class State : uint8_t { kBetween, kKey, kBeforeValue, kValue };

  void Watch(State state);
  CallStatus TakeMarker(absl::string_view marker);
  CallStatus TakeNone();
  CallStatus BeginKey();
  CallStatus EndKey();
  void BeginValue();
  void TakeValueByte(char byte);
  void EndValue();
  CallStatus EndCall();

  const ParameterSyntax& syntax_;
  const ToolTypes& types_;
  CallSink* const sink_;
  State state_ = State::kBetween;
  MarkerMatcher matcher_;
  std::vector<absl::string_view> markers_;
  std::string name_, id_;
  bool began_ = false, has_parameters_ = false;
  std::string key_;
  // Of the value:
  ValueTypes value_types_;
  bool is_text_ = false, at_first_byte_ = false;
  bool line_feed_ = false;  // of a text: held, as it may be the last byte
  std::string value_;       // of another type
};

}  // namespace switchyard::text
