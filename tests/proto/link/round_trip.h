// Round trip over the worker link: a struct with a different value in each field is converted to a message, serialized,
// and converted back.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"

namespace switchyard::test {

template <class Message>
Message OverTheWire(const Message& message) {
  Message out;
  EXPECT_TRUE(out.ParseFromString(message.SerializeAsString()));
  return out;
}

// Gives each field a value of its own, none of them a default.
class Distinct {
 public:
  template <class... Fields>
  void Fill(Fields&... fields) {
    (Put(&fields), ...);
  }

 private:
  template <class Number>
  std::enable_if_t<std::is_arithmetic_v<Number>> Put(Number* field) {
    *field = static_cast<Number>(++last_ + (std::is_floating_point_v<Number> ? 0.5 : 0));
  }
  void Put(bool* field) { *field = true; }
  void Put(std::string* field) { *field = absl::StrCat("text ", ++last_); }
  template <class Element>
  void Put(std::vector<Element>* field) {
    field->resize(2);
    for (Element& element : *field) Put(&element);
  }
  template <class First, class Second>
  void Put(std::pair<First, Second>* field) {
    Put(&field->first);
    Put(&field->second);
  }

  int last_ = 0;
};

// Returns the names of fields, including nested messages', that have their defaults, since nothing set them.  Of
// repeated messages only the first is checked.
inline std::vector<std::string> Unset(const google::protobuf::Message& message, const std::string& path = "") {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& get = *message.GetReflection();
  std::vector<std::string> names;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const bool is_set = field->is_repeated() ? get.FieldSize(message, field) > 0 : get.HasField(message, field);
    if (!is_set) {
      names.push_back(path + field->name());
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map()) {
      const google::protobuf::Message& inner =
          field->is_repeated() ? get.GetRepeatedMessage(message, field, 0) : get.GetMessage(message, field);
      const std::vector<std::string> more = Unset(inner, absl::StrCat(path, field->name(), "."));
      names.insert(names.end(), more.begin(), more.end());
    }
  }
  return names;
}

}  // namespace switchyard::test
