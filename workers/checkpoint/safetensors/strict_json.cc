#include "workers/checkpoint/safetensors/strict_json.h"

#include <cctype>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

// Builds the value while it is parsed, so that a limit stops the parser before the memory is spent.
class StrictSax : public nlohmann::json_sax<Json> {
 public:
  explicit StrictSax(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary value"); }

  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& value) override {
    if (static_cast<int64_t>(value.size()) > limits_.max_key_bytes) {
      return Fail(
          absl::StrCat("key of ", value.size(), " bytes, limit ", limits_.max_key_bytes, ": \"", Excerpt(value), "\""));
    }
    if (!stack_.back().keys.insert(value).second) return Fail(absl::StrCat("duplicate key \"", Excerpt(value), "\""));
    stack_.back().key = std::move(value);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& exception) override {
    // The library's text ends in what it expected; before that are a code and a position of its own format.
    const absl::string_view what(exception.what());
    const bool overflow = what.find("number overflow") != absl::string_view::npos;
    const bool utf8 = what.find("ill-formed UTF-8") != absl::string_view::npos;
    const char* reason = overflow ? "number out of range" : utf8 ? "invalid UTF-8" : "syntax error";
    error_ = absl::StrCat(reason, " at byte ", position, " near \"", Excerpt(last_token), "\"");
    return false;
  }

  Json TakeValue() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  struct Container {
    Json value;
    std::string key;  // of the member that is being read
    absl::flat_hash_set<std::string> keys;
  };

  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  bool Count() {
    if (++num_values_ <= limits_.max_values) return true;
    return Fail(absl::StrCat("more than ", limits_.max_values, " values"));
  }
  bool Open(Json container) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      return Fail(absl::StrCat("nested deeper than ", limits_.max_depth));
    }
    if (!Count()) return false;
    stack_.push_back({std::move(container), {}, {}});
    return true;
  }
  bool Close() {
    Json value = std::move(stack_.back().value);
    stack_.pop_back();
    Place(std::move(value));
    return true;
  }
  bool Add(Json value) {
    if (!Count()) return false;
    Place(std::move(value));
    return true;
  }
  void Place(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (Container& top = stack_.back(); top.value.is_object()) {
      top.value[std::move(top.key)] = std::move(value);
    } else {
      top.value.push_back(std::move(value));
    }
  }

  const JsonLimits limits_;
  std::vector<Container> stack_;
  Json root_;
  int64_t num_values_ = 0;
  std::string error_;
};

}  // namespace

std::string Excerpt(absl::string_view text) {
  constexpr size_t kMax = 64;
  std::string out;
  for (const char c : text.substr(0, kMax)) {
    if (std::isprint(static_cast<unsigned char>(c)) != 0) {
      out.push_back(c);
    } else {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  if (text.size() > kMax) out += "...";
  return out;
}

absl::StatusOr<Json> ParseStrictJson(absl::string_view what, absl::string_view text, const JsonLimits& limits) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") {
    return absl::InvalidArgumentError(absl::StrCat(what, ": byte order mark at byte 0"));
  }
  // A raw NUL is no JSON anywhere, but the library takes it for the end of the text.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": syntax error at byte ", nul + 1, " near \"\\x00\""));
  }
  StrictSax sax(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &sax)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", sax.error()));
  }
  return sax.TakeValue();
}

}  // namespace switchyard
