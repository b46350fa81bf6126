#include "scheduler/base/flags/flag.h"

#include <algorithm>

namespace switchyard {

Flag::Flag(absl::string_view name, absl::string_view placeholder, std::string default_text)
    : name_(name.substr(0, name.find('='))),
      placeholder_(name_.size() < name.size() ? name.substr(name_.size() + 1) : placeholder),
      default_text_(std::move(default_text)) {}

Flag& Flag::Alias(absl::string_view name) {
  aliases_.emplace_back(name);
  return *this;
}

Flag& Flag::Mark(uint32_t marks) {
  marks_ |= marks;
  return *this;
}

Flag& Flag::NoDefault() {
  shows_default_ = false;
  return *this;
}

Flag& Flag::Required() {
  required_ = true;
  return *this;
}

bool Flag::HasName(absl::string_view name) const {
  return name == name_ || std::find(aliases_.begin(), aliases_.end(), name) != aliases_.end();
}

FunctionFlag::FunctionFlag(absl::string_view name, std::string default_text, TakeFn take)
    : Flag(name, "TEXT", default_text), take_(std::move(take)), text_(std::move(default_text)) {}

bool FunctionFlag::Set(absl::string_view text, std::string* error) {
  *error = take_(text);
  if (error->empty()) text_ = std::string(text);
  return error->empty();
}

}  // namespace switchyard
