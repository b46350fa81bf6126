#include "server/text/output/calls/call_reader.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace switchyard::text {
namespace {

// What a word ends with: white space, or what begins a marker or JSON.
bool EndsWord(char byte) {
  return static_cast<unsigned char>(byte) <= ' ' ||
         absl::string_view("<>[]{}\"'`").find(byte) != absl::string_view::npos;
}

// "functions.NAME:3" → NAME.
absl::string_view NameInId(absl::string_view id) {
  id = absl::StripPrefix(id, "functions.");
  const size_t colon = id.rfind(':');
  if (colon == absl::string_view::npos) return id;
  const absl::string_view number = id.substr(colon + 1);
  const bool digits = std::all_of(number.begin(), number.end(),
                                  [](char byte) { return absl::ascii_isdigit(static_cast<unsigned char>(byte)); });
  return digits ? id.substr(0, colon) : id;
}

}  // namespace

CallReader::CallReader(const ToolFormat& format, const ToolTypes& types, CallSink* sink)
    : format_(format), types_(types), sink_(sink), parameters_(format.parameters, types, sink) {}

void CallReader::Start(int first, bool known_tools_only, absl::string_view name) {
  known_tools_only_ = known_tools_only;
  name_ = std::string(name);
  id_.clear();
  objects_.reset();
  scanner_ = JsonScanner();
  in_json_ = false;
  parameters_.Start("", "");
  step_ = first - 1;
  Next();
}

void CallReader::Next() {
  ++step_;
  in_id_ = false;
  word_.clear();
  (void)matcher_.TakeHeld();
  marker_ = step().marker;
  matcher_.Watch(absl::MakeConstSpan(&marker_, 1));
  if (step().op == Op::kParameters) parameters_.Start(name_, id_);
}

CallStatus CallReader::Take(char byte) {
  switch (step().op) {
    case Op::kExpect:
    case Op::kMay:
      return TakeForMarker(byte);
    case Op::kMayId:
      return in_id_ ? TakeForWord(byte) : TakeForMarker(byte);
    case Op::kWord:
    case Op::kName:
      return TakeForWord(byte);
    case Op::kObjects:
    case Op::kObjectsOrSteps:
      return TakeForObjects(byte);
    case Op::kArguments:
      return TakeForArguments(byte);
    default:
      return parameters_.Take(byte);
  }
}

CallStatus CallReader::TakeForMarker(char byte) {
  if (matcher_.held().empty() && IsJsonSpace(byte)) return CallStatus::kMore;
  const MarkerMatcher::Step found = matcher_.Take(byte);
  if (found == MarkerMatcher::Step::kHeld) return CallStatus::kMore;
  if (found == MarkerMatcher::Step::kFound) {
    (void)matcher_.TakeHeld();
    if (step().op == Op::kMayId) {
      in_id_ = true;
    } else {
      Next();
    }
    return CallStatus::kMore;
  }
  if (step().op == Op::kExpect) return CallStatus::kFailed;
  const std::string bytes = matcher_.TakeHeld();
  Next();
  return TakeAgain(bytes);
}

CallStatus CallReader::TakeAgain(const std::string& bytes) {
  for (const char byte : bytes) {
    if (const CallStatus status = Take(byte); status != CallStatus::kMore) return status;
  }
  return CallStatus::kMore;
}

CallStatus CallReader::TakeForWord(char byte) {
  if (!EndsWord(byte)) {
    word_ += byte;
    return word_.size() <= kMaxNameBytes ? CallStatus::kMore : CallStatus::kFailed;
  }
  if (word_.empty()) return IsJsonSpace(byte) ? CallStatus::kMore : CallStatus::kFailed;
  if (const CallStatus status = EndWord(); status != CallStatus::kMore) return status;
  Next();
  return Take(byte);
}

CallStatus CallReader::EndWord() {
  if (step().op == Op::kMayId) id_ = word_;
  if (step().op != Op::kName) return CallStatus::kMore;
  name_ = word_;
  if (format_.name_is_id) {
    id_ = word_;
    name_ = std::string(NameInId(word_));
  }
  return !name_.empty() && (!known_tools_only_ || types_.Knows(name_)) ? CallStatus::kMore : CallStatus::kFailed;
}

CallStatus CallReader::TakeForArguments(char byte) {
  if (!in_json_) {
    if (IsJsonSpace(byte)) return CallStatus::kMore;
    if (byte != '{') return CallStatus::kFailed;
    in_json_ = true;
    sink_->Begin(name_, id_);
  }
  std::string json;
  const JsonScanner::Step step = scanner_.Take(byte, &json);
  if (step == JsonScanner::Step::kBad) return CallStatus::kFailed;
  sink_->Arguments(json);
  if (step == JsonScanner::Step::kMore) return CallStatus::kMore;
  sink_->End();
  return CallStatus::kDone;
}

CallStatus CallReader::TakeForObjects(char byte) {
  if (!objects_) {
    if (IsJsonSpace(byte)) return CallStatus::kMore;
    if (byte != '{' && byte != '[') {
      if (step().op == Op::kObjects) return CallStatus::kFailed;
      Next();
      return Take(byte);
    }
    objects_.emplace(known_tools_only_ ? &types_ : nullptr, sink_);
  }
  return objects_->Take(byte);
}

}  // namespace switchyard::text
