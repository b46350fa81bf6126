// Flags of a request: one per row of its field table.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/request_fields.h"

namespace switchyard {

// Not movable once AddTo was called: the parser holds pointers into it.
template <class Request>
class RequestFlags {
 public:
  void AddTo(CLI::App* app, std::initializer_list<absl::string_view> but = {}) {
    for (const RequestField<Request>& field : RequestFields<Request>()) {
      bool skipped = false;
      for (absl::string_view name : but) skipped = skipped || name == field.name;
      if (!skipped) AddOne(app, field);
    }
  }

  // {"field": value} of the flags that were given.
  absl::StatusOr<Json> Given() const {
    Json object = Json::object();
    for (const RequestField<Request>& field : RequestFields<Request>()) {
      const auto values = values_.find(field.name);
      if (values == values_.end() || values->second.empty()) continue;
      absl::StatusOr<Json> value = FlagToJson(field.kind, values->second);
      if (!value.ok()) return absl::InvalidArgumentError(absl::StrCat("--", field.name, " ", value.status().message()));
      object[field.name] = *std::move(value);
    }
    return object;
  }

 private:
  void AddOne(CLI::App* app, const RequestField<Request>& field) {
    std::vector<std::string>& values = values_[field.name];
    const std::string name = absl::StrCat("--", field.name);
    if (field.kind == FieldKind::kBool) {
      app->add_flag(name, values, field.help);  // --name, or --name=false
    } else if (field.kind == FieldKind::kTexts) {
      // One value for each time the flag is given; no splitting of '[1,2]' by the parser.
      app->add_option(name, values, field.help)->allow_extra_args(false)->type_name(TypeName(field.kind));
    } else {
      const auto set = [&values](const std::string& value) { values = {value}; };
      app->add_option_function<std::string>(name, set, field.help)->type_name(TypeName(field.kind));
    }
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

}  // namespace switchyard
