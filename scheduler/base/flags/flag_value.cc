#include "scheduler/base/flags/flag_value.h"

#include "absl/flags/marshalling.h"

namespace switchyard {

bool ParseValue(absl::string_view text, bool* out, std::string* error) { return absl::ParseFlag(text, out, error); }
bool ParseValue(absl::string_view text, int32_t* out, std::string* error) { return absl::ParseFlag(text, out, error); }
bool ParseValue(absl::string_view text, int64_t* out, std::string* error) { return absl::ParseFlag(text, out, error); }
bool ParseValue(absl::string_view text, uint64_t* out, std::string* error) { return absl::ParseFlag(text, out, error); }
bool ParseValue(absl::string_view text, double* out, std::string* error) { return absl::ParseFlag(text, out, error); }
bool ParseValue(absl::string_view text, absl::Duration* out, std::string* error) {
  return absl::ParseFlag(text, out, error);
}
bool ParseValue(absl::string_view text, std::string* out, std::string* /*error*/) {
  *out = std::string(text);
  return true;
}

std::string ValueText(bool value) { return value ? "true" : "false"; }
std::string ValueText(int32_t value) { return absl::UnparseFlag(value); }
std::string ValueText(int64_t value) { return absl::UnparseFlag(value); }
std::string ValueText(uint64_t value) { return absl::UnparseFlag(value); }
std::string ValueText(double value) { return absl::UnparseFlag(value); }
std::string ValueText(absl::Duration value) { return absl::FormatDuration(value); }
std::string ValueText(const std::string& value) { return value; }

}  // namespace switchyard
