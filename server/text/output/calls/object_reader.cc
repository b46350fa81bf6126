#include "server/text/output/calls/object_reader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "scheduler/base/text/strict_json.h"

namespace switchyard::text {
namespace {

// The text that a JSON string means; empty if it is none.
std::string DecodeString(absl::string_view json) {
  nlohmann::json value;
  if (ReadJson(json, LenientJson(1), &value).has_value() || !value.is_string()) return "";
  return value.get<std::string>();
}

bool IsJsonObject(absl::string_view json) {
  nlohmann::ordered_json value;
  return !ReadJson(json, LenientJson(kMaxJsonDepth), &value).has_value() && value.is_object();
}

}  // namespace

CallStatus ObjectReader::Take(char byte) {
  if (state_ == State::kKey) return TakeKey(byte);
  if (state_ == State::kValue) return TakeValue(byte);
  return IsJsonSpace(byte) ? CallStatus::kMore : TakeStructure(byte);
}

CallStatus ObjectReader::TakeStructure(char byte) {
  switch (state_) {
    case State::kStart:
      in_list_ = byte == '[';
      if (in_list_) {
        state_ = State::kNextObject;
        return CallStatus::kMore;
      }
      [[fallthrough]];
    case State::kNextObject:
      if (byte != '{') return CallStatus::kFailed;
      BeginObject();
      return CallStatus::kMore;
    case State::kAfterObject:
      if (byte == ']') return CallStatus::kDone;
      state_ = State::kNextObject;
      return byte == ',' ? CallStatus::kMore : CallStatus::kFailed;
    case State::kFirstKey:
    case State::kNextKey:
      text_.clear();
      scanner_ = JsonScanner();
      state_ = State::kKey;
      return byte == '"' ? TakeKey(byte) : CallStatus::kFailed;
    case State::kColon:
      state_ = State::kBeforeValue;
      return byte == ':' ? CallStatus::kMore : CallStatus::kFailed;
    case State::kBeforeValue:
      text_.clear();
      scanner_ = JsonScanner();
      state_ = State::kValue;
      if (member_ == Member::kArguments) {
        if (std::exchange(has_arguments_, true)) return CallStatus::kFailed;
        streams_ = byte == '{' && NameIsGood();
        if (streams_) {
          sink_->Begin(name_, id_);
          began_ = true;
        }
      }
      return TakeValue(byte);
    default:  // kAfterValue
      if (byte == '}') return EndObject();
      state_ = State::kNextKey;
      return byte == ',' ? CallStatus::kMore : CallStatus::kFailed;
  }
}

void ObjectReader::BeginObject() {
  state_ = State::kFirstKey;
  name_.clear();
  id_.clear();
  arguments_.clear();
  began_ = streams_ = has_arguments_ = false;
}

bool ObjectReader::NameIsGood() const {
  return !name_.empty() && name_.size() <= kMaxNameBytes && (known_ == nullptr || known_->Knows(name_));
}

CallStatus ObjectReader::TakeKey(char byte) {
  const JsonScanner::Step step = scanner_.Take(byte, &text_);
  if (step == JsonScanner::Step::kBad || text_.size() > kMaxNameBytes) return CallStatus::kFailed;
  if (step != JsonScanner::Step::kDone) return CallStatus::kMore;
  state_ = State::kColon;
  member_ = text_ == "\"name\""                                     ? Member::kName
            : text_ == "\"arguments\"" || text_ == "\"parameters\"" ? Member::kArguments
            : text_ == "\"id\""                                     ? Member::kId
                                                                    : Member::kOther;
  const bool may_be = known_ == nullptr || member_ != Member::kOther || text_ == "\"type\"";
  // Behind arguments that went on, another name would come too late.
  return may_be && !(began_ && member_ == Member::kName) ? CallStatus::kMore : CallStatus::kFailed;
}

CallStatus ObjectReader::TakeValue(char byte) {
  const size_t had = text_.size();
  const JsonScanner::Step step = scanner_.Take(byte, &text_);
  if (step == JsonScanner::Step::kBad) return CallStatus::kFailed;
  if (member_ == Member::kArguments && streams_) {
    sink_->Arguments(absl::string_view(text_).substr(had));
    text_.clear();
  }
  if (step == JsonScanner::Step::kMore) return CallStatus::kMore;
  state_ = State::kAfterValue;
  if (const CallStatus status = EndValue(); status != CallStatus::kMore) return status;
  return step == JsonScanner::Step::kDoneBefore ? Take(byte) : CallStatus::kMore;
}

CallStatus ObjectReader::EndValue() {
  switch (member_) {
    case Member::kName:
      name_ = DecodeString(text_);
      return NameIsGood() ? CallStatus::kMore : CallStatus::kFailed;
    case Member::kId:
      id_ = DecodeString(text_);
      if (id_.size() > kMaxNameBytes) id_.clear();
      return CallStatus::kMore;
    case Member::kArguments:
      if (streams_) return CallStatus::kMore;
      arguments_ = text_.front() == '"' ? DecodeString(text_) : std::move(text_);
      if (arguments_ == "null") arguments_ = "{}";
      return IsJsonObject(arguments_) ? CallStatus::kMore : CallStatus::kFailed;
    default:
      return CallStatus::kMore;
  }
}

CallStatus ObjectReader::EndObject() {
  if (!NameIsGood() || (known_ != nullptr && !has_arguments_)) return CallStatus::kFailed;
  if (!began_) {
    sink_->Begin(name_, id_);
    sink_->Arguments(has_arguments_ ? arguments_ : "{}");
  }
  sink_->End();
  state_ = State::kAfterObject;
  return in_list_ ? CallStatus::kMore : CallStatus::kDone;
}

}  // namespace switchyard::text
