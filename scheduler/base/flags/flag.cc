#include "scheduler/base/flags/flag.h"

#include <algorithm>

namespace switchyard {

Flag::Flag(absl::string_view name_and_placeholder, absl::string_view type_placeholder, std::string default_text)
    : name(name_and_placeholder.substr(0, name_and_placeholder.find('='))),
      placeholder(name.size() < name_and_placeholder.size() ? name_and_placeholder.substr(name.size() + 1)
                                                            : type_placeholder),
      default_text(std::move(default_text)) {}

Flag& Flag::Alias(absl::string_view alias) {
  aliases.emplace_back(alias);
  return *this;
}

Flag& Flag::Mark(uint32_t bits) {
  marks |= bits;
  return *this;
}

Flag& Flag::NoDefault() {
  shows_default = false;
  return *this;
}

Flag& Flag::Required() {
  required = true;
  return *this;
}

bool Flag::HasName(absl::string_view given) const {
  return given == name || std::find(aliases.begin(), aliases.end(), given) != aliases.end();
}

bool FunctionFlag::Set(absl::string_view text, std::string* error) {
  *error = take(text);
  if (error->empty()) last = std::string(text);
  return error->empty();
}

}  // namespace switchyard
