#include "clients/cli/message_json.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "clients/cli/field.h"
#include "clients/cli/json.h"
#include "clients/cpp/client_error.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/util/json_util.h"
#include "google/rpc/status.pb.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::cli {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Returns the prefix of an enum's values: "TrainPrecision" → "TRAIN_PRECISION_".
std::string EnumPrefix(const EnumDescriptor* type) {
  std::string prefix;
  for (const char c : type->name()) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(c);
  }
  return prefix + "_";
}

Json StatusJson(const google::rpc::Status& status) {
  const grpc::Status wire(static_cast<grpc::StatusCode>(status.code()), status.message(), status.SerializeAsString());
  Json out = {{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(status.code()))}};
  if (const std::string reason = rpc::ViewError(wire).reason; !reason.empty()) out["reason"] = reason;
  out["message"] = status.message();
  return out;
}

// Converts one value; index < 0: of a field that is not repeated.
Json ValueJson(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& get = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? get.GetInt32(message, field) : get.GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? get.GetInt64(message, field) : get.GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? get.GetUInt64(message, field) : get.GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? get.GetDouble(message, field) : get.GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? get.GetBool(message, field) : get.GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? get.GetString(message, field) : get.GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumName(field->enum_type(),
                      one ? get.GetEnumValue(message, field) : get.GetRepeatedEnumValue(message, field, index));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? get.GetMessage(message, field) : get.GetRepeatedMessage(message, field, index));
    default:
      return nullptr;  // float and uint32, which no printed message contains
  }
}

Json RepeatedJson(const Message& message, const FieldDescriptor* field) {
  Json list = Json::array();
  std::map<std::string, Json> by_key;  // a message's map has no order
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    Json item = ValueJson(message, field, i);
    if (field->is_map()) {
      by_key[item["key"].get<std::string>()] = std::move(item["value"]);
    } else {
      list.push_back(std::move(item));
    }
  }
  return field->is_map() ? Json(by_key) : list;
}

void AddField(const Message& message, const FieldDescriptor* field, Json* out) {
  if (field->is_repeated()) {
    (*out)[field->name()] = RepeatedJson(message, field);
    return;
  }
  if (field->has_presence() && !message.GetReflection()->HasField(message, field)) return;
  Json value = ValueJson(message, field, -1);
  const bool unspecified = field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM && value == "";
  if (!unspecified) (*out)[field->name()] = std::move(value);
}

template <class Value, class Set>
absl::Status StoreParsed(const Json& json, Set set) {
  Value value = {};
  RETURN_IF_ERROR(Read(json, &value));
  set(value);
  return absl::OkStatus();
}

// A number that protobuf's JSON has as a text becomes one; anything else stays.
Json Unquoted(const Json& json, const FieldDescriptor* field) {
  if (!json.is_string()) return json;
  const auto& text = json.get_ref<const std::string&>();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
    uint64_t number = 0;
    return absl::SimpleAtoi(text, &number) ? Json(number) : json;
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 || field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    int64_t number = 0;
    return absl::SimpleAtoi(text, &number) ? Json(number) : json;
  }
  double number = 0;
  const bool real = field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE && absl::SimpleAtod(text, &number);
  return real ? Json(number) : json;
}

absl::Status SetEnum(const Json& json, const FieldDescriptor* field, Message* message) {
  if (json.is_number_integer()) {
    const auto number = json.get<int64_t>();
    const bool fits = number >= 0 && number <= std::numeric_limits<int>::max();
    if (fits && field->enum_type()->FindValueByNumber(static_cast<int>(number)) != nullptr) {
      message->GetReflection()->SetEnumValue(message, field, static_cast<int>(number));
      return absl::OkStatus();
    }
  }
  std::string name;
  RETURN_IF_ERROR(Read(json, &name));
  if (const auto* value = field->enum_type()->FindValueByName(name); value != nullptr) {
    message->GetReflection()->SetEnum(message, field, value);
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  for (int i = 0; i < field->enum_type()->value_count(); ++i) {
    const int number = field->enum_type()->value(i)->number();
    names.push_back(EnumName(field->enum_type(), number));
    if (names.back().empty()) {
      names.pop_back();
    } else if (names.back() == absl::AsciiStrToLower(name)) {
      message->GetReflection()->SetEnumValue(message, field, number);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("is ", Quote(name), "; ", SuggestName(name, names)));
}

// Reads {"key": "text"} or ["key=text"].
absl::Status SetTextMap(const Json& json, const FieldDescriptor* field, Message* message) {
  const auto wrong = [](const Json& value) {
    const std::string shown = value.is_string() ? value.get<std::string>() : Dump(value);
    return absl::InvalidArgumentError(absl::StrCat("must be an object of texts, or KEY=TEXT, is ", Quote(shown)));
  };
  std::vector<std::pair<std::string, std::string>> pairs;
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) return wrong(json);
      pairs.emplace_back(key, value.get<std::string>());
    }
  } else if (!json.is_array()) {
    return wrong(json);
  } else {
    for (const Json& item : json) {
      const size_t equals = item.is_string() ? item.get_ref<const std::string&>().find('=') : std::string::npos;
      if (equals == std::string::npos) return wrong(item);
      const auto& text = item.get_ref<const std::string&>();
      pairs.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  const Reflection& reflection = *message->GetReflection();
  reflection.ClearField(message, field);
  for (const auto& [key, value] : pairs) {
    Message* entry = reflection.AddMessage(message, field);
    entry->GetReflection()->SetString(entry, field->message_type()->map_key(), key);
    entry->GetReflection()->SetString(entry, field->message_type()->map_value(), value);
  }
  return absl::OkStatus();
}

absl::Status SetTexts(const Json& json, const FieldDescriptor* field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  return StoreParsed<std::vector<std::string>>(json, [&](const std::vector<std::string>& texts) {
    reflection.ClearField(message, field);
    for (const std::string& text : texts) reflection.AddString(message, field, text);
  });
}

absl::Status SetNumbers(const Json& json, const FieldDescriptor* field, Message* message) {
  if (!json.is_array())
    return absl::InvalidArgumentError(absl::StrCat("must be a list of numbers, is ", Quote(Dump(json))));
  std::vector<double> numbers(json.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (const absl::Status read = Read(Unquoted(json[i], field), &numbers[i]); !read.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("item ", i, " ", read.message()));
    }
  }
  const Reflection& reflection = *message->GetReflection();
  reflection.ClearField(message, field);
  for (const double number : numbers) reflection.AddDouble(message, field, number);
  return absl::OkStatus();
}

absl::Status SetField(const Json& given, const FieldDescriptor* field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  if (given.is_null()) {
    reflection.ClearField(message, field);
    return absl::OkStatus();
  }
  const Json json = field->is_repeated() ? given : Unquoted(given, field);
  if (field->is_map()) return SetTextMap(json, field, message);
  if (field->is_repeated()) {
    return field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE ? SetNumbers(json, field, message)
                                                                : SetTexts(json, field, message);
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return StoreParsed<int32_t>(json, [&](int32_t value) { reflection.SetInt32(message, field, value); });
    case FieldDescriptor::CPPTYPE_INT64:
      return StoreParsed<int64_t>(json, [&](int64_t value) { reflection.SetInt64(message, field, value); });
    case FieldDescriptor::CPPTYPE_UINT64:
      return StoreParsed<uint64_t>(json, [&](uint64_t value) { reflection.SetUInt64(message, field, value); });
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return StoreParsed<double>(json, [&](double value) { reflection.SetDouble(message, field, value); });
    case FieldDescriptor::CPPTYPE_BOOL:
      return StoreParsed<bool>(json, [&](bool value) { reflection.SetBool(message, field, value); });
    case FieldDescriptor::CPPTYPE_STRING:
      return StoreParsed<std::string>(json, [&](std::string value) { reflection.SetString(message, field, value); });
    case FieldDescriptor::CPPTYPE_ENUM:
      return SetEnum(json, field, message);
    default:
      return absl::UnimplementedError("has a type that cannot be given");
  }
}

// By either of its names; null: there is none.
const FieldDescriptor* FieldOf(const google::protobuf::Descriptor* type, const std::string& key) {
  const FieldDescriptor* field = type->FindFieldByName(key);
  return field != nullptr ? field : type->FindFieldByCamelcaseName(key);
}

absl::Status UnknownField(const google::protobuf::Descriptor* type, const std::string& prefix, const std::string& key) {
  const bool camel = std::any_of(key.begin(), key.end(), [](unsigned char c) { return absl::ascii_isupper(c); });
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) {
    names.push_back(camel ? type->field(i)->camelcase_name() : type->field(i)->name());
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown field ", Quote(prefix + key), "; ", SuggestName(key, names)));
}

absl::Status MergeAt(const std::string& prefix, const Json& object, Message* message);

absl::Status MergeList(const std::string& path, const Json& list, const FieldDescriptor* field, Message* message) {
  if (!list.is_array())
    return absl::InvalidArgumentError(absl::StrCat(path, " must be a list, is ", Quote(Dump(list))));
  message->GetReflection()->ClearField(message, field);
  for (size_t i = 0; i < list.size(); ++i) {
    Message* item = message->GetReflection()->AddMessage(message, field);
    RETURN_IF_ERROR(MergeAt(absl::StrCat(path, "[", i, "]."), list[i], item));
  }
  return absl::OkStatus();
}

absl::Status MergeAt(const std::string& prefix, const Json& object, Message* message) {
  if (!object.is_object()) {
    const std::string where = prefix.empty() ? "" : absl::StrCat(prefix.substr(0, prefix.size() - 1), " ");
    return absl::InvalidArgumentError(absl::StrCat(where, "must be an object, is ", Quote(Dump(object))));
  }
  for (const auto& [key, value] : object.items()) {
    const FieldDescriptor* field = FieldOf(message->GetDescriptor(), key);
    const std::string path = absl::StrCat(prefix, key);
    if (field == nullptr) return UnknownField(message->GetDescriptor(), prefix, key);
    if (key != field->name() && object.contains(field->name())) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is there a second time, as ", Quote(field->name())));
    }
    const bool of_messages = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map();
    if (of_messages && field->is_repeated() && !value.is_null()) {
      RETURN_IF_ERROR(MergeList(path, value, field, message));
    } else if (of_messages && !value.is_null()) {
      Message* part = message->GetReflection()->MutableMessage(message, field);
      RETURN_IF_ERROR(MergeAt(absl::StrCat(path, "."), value, part));
    } else if (const absl::Status status = SetField(value, field, message); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string EnumName(const EnumDescriptor* type, int value) {
  const auto* named = type->FindValueByNumber(value);
  if (named == nullptr) return absl::StrCat(value);
  const std::string name(absl::StripPrefix(named->name(), EnumPrefix(type)));
  return name == "UNSPECIFIED" ? "" : absl::AsciiStrToLower(name);
}

Json ToJson(const Message& message) {
  if (const auto* status = dynamic_cast<const google::rpc::Status*>(&message)) return StatusJson(*status);
  Json out = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    AddField(message, message.GetDescriptor()->field(i), &out);
  }
  return out;
}

Json ToJson(const Message& message, std::initializer_list<const char*> fields) {
  Json out = Json::object();
  for (const char* name : fields) AddField(message, message.GetDescriptor()->FindFieldByName(name), &out);
  return out;
}

std::string CanonicalJson(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  std::string text;
  // (Only a message of a type that is not known to the program has none.)
  static_cast<void>(google::protobuf::util::MessageToJsonString(message, &text, options));
  return text;
}

absl::Status MergeJson(const Json& object, Message* message) { return MergeAt("", object, message); }

absl::Status MergeField(absl::string_view path, const Json& value, Message* message) {
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    message = message->GetReflection()->MutableMessage(message, message->GetDescriptor()->FindFieldByName(names[i]));
  }
  return SetField(value, message->GetDescriptor()->FindFieldByName(names.back()), message);
}

}  // namespace switchyard::cli
