// The flags of a request: one per row of its field table.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/json.h"
#include "clients/cli/request_fields.h"
#include "scheduler/base/flags/flag_set.h"

namespace switchyard::cli {

// Must not move after AddTo, since the FlagSet then holds pointers into it.
template <class Request>
class RequestFlags {
 public:
  void AddTo(FlagSet* flags, std::initializer_list<absl::string_view> but = {}) {
    for (const RequestField<Request>& field : RequestFields<Request>()) {
      if (field.group != nullptr) flags->BeginGroup(field.group);
      if (std::find(but.begin(), but.end(), field.name) == but.end()) AddOne(flags, field);
    }
  }

  // Returns {"field": value, ...} for the flags that were given.  Errors are BadInput.
  absl::StatusOr<Json> Given() const {
    Json object = Json::object();
    for (const RequestField<Request>& field : RequestFields<Request>()) {
      const auto values = values_.find(field.name);
      if (values == values_.end() || values->second.empty()) continue;
      absl::StatusOr<Json> value = FlagToJson(field.kind, values->second);
      if (!value.ok()) return BadInput(absl::StrCat("--", field.name, " ", value.status().message()));
      object[field.name] = *std::move(value);
    }
    return object;
  }

 private:
  void AddOne(FlagSet* flags, const RequestField<Request>& field) {
    std::vector<std::string>& values = values_[field.name];
    if (field.kind == FieldKind::kTexts) {
      flags->Add(field.name, &values, field.help);
      return;
    }
    const auto take = [&values](absl::string_view text) {
      values.emplace_back(text);
      return std::string();
    };
    flags->AddFunction(absl::StrCat(field.name, "=", TypeName(field.kind)), "", take, field.help,
                       field.kind == FieldKind::kBool);
  }
  static const char* TypeName(FieldKind kind) {
    switch (kind) {
      case FieldKind::kNumber:
        return "NUMBER";
      case FieldKind::kIds:
        return "IDS";
      case FieldKind::kJson:
        return "JSON";
      default:
        return "TEXT";
    }
  }

  std::map<std::string, std::vector<std::string>> values_;
};

}  // namespace switchyard::cli
