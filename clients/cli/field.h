// Table of a request's fields: one row defines the flag, the key in JSON lines and the help of both.
//
// A row's setter reads a JSON value into the request; a flag's text becomes a JSON value first.  Pure; errors are
// InvalidArgument without the field's name ("must be an integer, is \"x\""), which the callers put first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "clients/cli/json_fwd.h"

namespace switchyard::cli {

enum class FieldKind {
  kText,    // --name=TEXT
  kNumber,  // --name=0.5
  kBool,    // --name or --name=false
  kIds,     // --name=1,2,3
  kTexts,   // --name=A --name=B
  kJson,    // --name='JSON'
};

template <class Request>
struct RequestField {
  const char* name;
  FieldKind kind;
  const char* help;
  absl::Status (*set)(const Json& value, Request* request);
  const char* group = nullptr;  // --help's title from this row on
  const char* path = nullptr;   // of the message's fields (with commas), where messages are merged by them
};

// Converts a flag's values (one for each time it was given) to JSON.
absl::StatusOr<Json> FlagToJson(FieldKind kind, const std::vector<std::string>& values);

// Read a value as a type.  An integer must be written without a fraction and lie within its type's range.
absl::Status Read(const Json& value, bool* out);
absl::Status Read(const Json& value, int32_t* out);
absl::Status Read(const Json& value, int64_t* out);
absl::Status Read(const Json& value, uint64_t* out);
absl::Status Read(const Json& value, double* out);
absl::Status Read(const Json& value, std::string* out);
absl::Status Read(const Json& value, std::vector<int32_t>* out);
absl::Status Read(const Json& value, std::vector<std::string>* out);

// Stores through a setter of a protobuf message: Store<&v1::GenerateRequest::set_n>(value, &request).
template <class Message, class Value>
absl::Status StoreWith(void (Message::*set)(Value), const Json& value, Message* message) {
  Value read = {};
  if (absl::Status status = Read(value, &read); !status.ok()) return status;
  (message->*set)(read);
  return absl::OkStatus();
}
template <auto kSet, class Message>
absl::Status Store(const Json& value, Message* message) {
  return StoreWith(kSet, value, message);
}

// "did you mean X?" for the name that is the fewest edits away, if few enough; else the whole list.
std::string SuggestName(absl::string_view wrong, const std::vector<std::string>& names);

// Finds the field called `name`; the error suggests the nearest name.
template <class Request>
absl::StatusOr<const RequestField<Request>*> FindField(absl::Span<const RequestField<Request>> fields,
                                                       absl::string_view name) {
  std::vector<std::string> names;
  for (const RequestField<Request>& field : fields) {
    if (name == field.name) return &field;
    names.push_back(field.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown field \"", name.substr(0, 64), "\"; ", SuggestName(name, names)));
}

}  // namespace switchyard::cli
