#include "scheduler/base/env.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard {

std::string EnvString(absl::string_view name) {
  for (const EnvVar& var : kEnvVars) {
    if (name == var.name) {
      const char* value = std::getenv(var.name);
      return value ? value : var.default_value;
    }
  }
  internal::CheckFailed(__FILE__, __LINE__, "environment variable is in the table", std::string(name));
}

bool EnvBool(absl::string_view name) {
  const std::string value = EnvString(name);
  return !value.empty() && value != "0";
}

std::string EnvHelp() {
  std::string out = "Environment (for debugging):\n";
  for (const EnvVar& var : kEnvVars) {
    absl::StrAppend(&out, "  ", var.name, " (default \"", var.default_value, "\"): ", var.help, "\n");
  }
  return out;
}

}  // namespace switchyard
