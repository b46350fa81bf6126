// A value of a JSON file and its path: reads it as a type, with errors that say where it is: "tokenizer.json:
// model.vocab: expected object, found null".  The text itself is parsed by scheduler/base/text/strict_json.h.  A Field
// borrows the document, which must outlive it; its value may be absent.  Thread-compatible.  Never throws; copies no
// values but strings.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::tokenizer {

// Parses a whole file.  InvalidArgument names the place of the fault; `name` is the file's name in messages.  Of
// several members of one name the last one counts, as with HuggingFace's reader.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view name);

class Field {
 public:
  // The whole document; `file` begins every message.
  Field(const nlohmann::json* value, absl::string_view file) : value_(value), file_(file) {}

  // Absent and null are the same: HuggingFace writes either.
  bool present() const { return value_ != nullptr && !value_->is_null(); }
  const nlohmann::json& value() const { return *value_; }  // REQUIRES: present()
  Field operator[](absl::string_view key) const;           // absent if this is not an object
  Field at(size_t index) const;                            // REQUIRES: an array longer than index
  size_t size() const { return present() ? value_->size() : 0; }

  // An error with the expected value in words and the found one.
  absl::Status Expected(absl::string_view what) const;
  absl::Status Error(absl::string_view message) const;

  absl::Status CheckObject() const;
  absl::Status CheckArray() const;
  absl::StatusOr<std::string> String() const;
  absl::StatusOr<std::string> StringOr(absl::string_view fallback) const;
  absl::StatusOr<char32_t> CharacterOr(absl::string_view fallback) const;  // a string of one character
  absl::StatusOr<bool> BoolOr(bool fallback) const;
  // Reads an integer in [low, high]; refuses a number that is written as a float.
  absl::StatusOr<int64_t> Int(int64_t low, int64_t high) const;
  absl::StatusOr<int64_t> IntOr(int64_t fallback, int64_t low, int64_t high) const;

 private:
  Field(const nlohmann::json* value, absl::string_view file, std::string path)
      : value_(value), file_(file), path_(std::move(path)) {}

  const nlohmann::json* value_;
  absl::string_view file_;
  std::string path_;
};

}  // namespace switchyard::tokenizer
