#include "scheduler/base/text/strict_json.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/quote.h"

namespace switchyard {
namespace {

constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kMaxDetailBytes = 160;
constexpr size_t kFewMembers = 64;  // are looked up one by one

using Kind = JsonFault::Kind;

// Sets depth and number of keys of the whole text, for a message: the reader stops where the limit is.
void Measure(absl::string_view text, JsonFault* fault) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      fault->depth = std::max(fault->depth, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':') {
      ++fault->keys;
    }
  }
}

// Builds the value while it is parsed, so that a limit stops the parser before the memory is spent.
template <class Json>
class Builder {
 public:
  using Object = typename Json::object_t;
  using Array = typename Json::array_t;
  using Text = typename Json::string_t;

  Builder(const JsonLimits& limits, Json* root) : limits_(limits), root_(*root) {}

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(typename Json::number_integer_t value) { return Add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) { return Add(value); }
  bool number_float(typename Json::number_float_t value, const Text&) { return Add(value); }
  bool string(Text& value) { return Add(value); }  // copied: the parser's buffer is larger, and used again
  bool binary(typename Json::binary_t&) { return Fail(Kind::kText, "binary value"); }

  bool start_object(size_t) { return Open(Json::value_t::object); }
  bool start_array(size_t) { return Open(Json::value_t::array); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(Text& name) {
    if (static_cast<int64_t>(name.size()) > limits_.max_key_bytes) {
      return Fail(Kind::kKeyBytes, absl::StrCat("key of ", name.size(), " bytes, limit ", limits_.max_key_bytes, ": \"",
                                                Excerpt(name), "\""));
    }
    if (++num_keys_ > limits_.max_keys) return Fail(Kind::kKeys, "");
    const auto [member, is_new] = MemberOf(&stack_.back(), name);
    if (!is_new && !limits_.lenient) {
      return Fail(Kind::kDuplicateKey, absl::StrCat("duplicate key \"", Excerpt(name), "\""));
    }
    member_ = member;
    return true;
  }

  bool parse_error(size_t position, const std::string& last_token, const nlohmann::detail::exception& exception) {
    // The library's text ends with what the parser expected; before that are a code and a position in its own format.
    absl::string_view what(exception.what());
    const bool overflow = what.find("number overflow") != absl::string_view::npos;
    const bool utf8 = what.find("ill-formed UTF-8") != absl::string_view::npos;
    const char* reason = overflow ? "number out of range" : utf8 ? "invalid UTF-8" : "syntax error";
    if (const size_t bracket = what.find("] "); bracket != absl::string_view::npos) what.remove_prefix(bracket + 2);
    return Fail(Kind::kText, absl::StrCat(reason, " at byte ", position, " near \"", Excerpt(last_token), "\""),
                Excerpt(what, kMaxDetailBytes));
  }

  JsonFault& fault() { return fault_; }

 private:
  struct Level {
    Json* container;
    absl::flat_hash_map<Text, size_t> places;  // of an ordered object's members, once they are many
  };

  // The place of the member's value, and whether it is new.
  std::pair<Json*, bool> MemberOf(Level* level, const Text& name) {
    Object& members = *level->container->template get_ptr<Object*>();
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      // Such an object looks names up one by one: a large one would take time with the square of its size.
      if (members.size() >= kFewMembers) {
        if (level->places.empty()) {
          for (const auto& member : members) level->places.emplace(member.first, level->places.size());
        }
        const auto [place, is_new] = level->places.emplace(name, members.size());
        if (is_new) members.emplace_back(name, nullptr);
        return {&members.begin()[static_cast<std::ptrdiff_t>(place->second)].second, is_new};
      }
    }
    const auto [member, is_new] = members.emplace(name, nullptr);
    return {&member->second, is_new};
  }
  bool Fail(Kind kind, std::string reason, std::string detail = {}) {
    fault_ = {kind, std::move(reason), std::move(detail)};
    return false;
  }
  bool Count() {
    if (++num_values_ <= limits_.max_values) return true;
    return Fail(Kind::kValues, absl::StrCat("more than ", limits_.max_values, " values"));
  }
  bool Open(typename Json::value_t container) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) return Fail(Kind::kDepth, "");
    if (!Count()) return false;
    stack_.push_back({Place(container), {}});
    return true;
  }
  bool Close() {
    stack_.pop_back();
    return true;
  }
  template <class Value>
  bool Add(const Value& value) {
    if (!Count()) return false;
    Place(value);
    return true;
  }
  template <class Value>
  Json* Place(const Value& value) {
    if (!stack_.empty()) {
      Array* const list = stack_.back().container->template get_ptr<Array*>();
      if (list != nullptr) return &list->emplace_back(value);
    }
    Json* place = stack_.empty() ? &root_ : member_;
    *place = Json(value);
    return place;
  }

  const JsonLimits& limits_;
  Json& root_;
  std::vector<Level> stack_;  // the containers that are open; only the innermost one grows, so the others stay in place
  Json* member_ = nullptr;    // of the innermost one, if it is an object: where the next value goes
  int64_t num_values_ = 0, num_keys_ = 0;
  JsonFault fault_;
};

std::optional<JsonFault> TextFault(std::string reason) { return JsonFault{Kind::kText, reason, reason}; }

}  // namespace

template <class Json>
std::optional<JsonFault> ReadJson(absl::string_view text, const JsonLimits& limits, Json* value) {
  if (!limits.lenient && text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    return TextFault("byte order mark at byte 0");
  }
  // A raw NUL is no JSON anywhere, but the library takes it for the end of the text.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return TextFault(absl::StrCat("syntax error at byte ", nul + 1, " near \"\\x00\""));
  }
  Builder<Json> builder(limits, value);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return std::nullopt;
  JsonFault& fault = builder.fault();
  if (fault.kind == Kind::kDepth || fault.kind == Kind::kKeys) Measure(text, &fault);
  if (fault.kind == Kind::kDepth)
    fault.reason = absl::StrCat("nested ", fault.depth, " deep, limit ", limits.max_depth);
  if (fault.kind == Kind::kKeys) fault.reason = absl::StrCat(fault.keys, " keys, limit ", limits.max_keys);
  return std::move(fault);
}

template std::optional<JsonFault> ReadJson(absl::string_view, const JsonLimits&, nlohmann::json*);
template std::optional<JsonFault> ReadJson(absl::string_view, const JsonLimits&, nlohmann::ordered_json*);

absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view what, absl::string_view text,
                                               const JsonLimits& limits) {
  nlohmann::json value;
  const std::optional<JsonFault> fault = ReadJson(text, limits, &value);
  if (!fault) return value;
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": ", fault->kind == Kind::kDepth ? absl::StrCat("nested deeper than ", limits.max_depth) : fault->reason));
}

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view what, absl::string_view text,
                                               const JsonLimits& limits) {
  nlohmann::json value;
  const std::optional<JsonFault> fault = ReadJson(text, limits, &value);
  const bool no_object = fault ? fault->kind == Kind::kText : !value.is_object();
  if (no_object) return absl::InvalidArgumentError(absl::StrCat(what, ": not a JSON object"));
  if (fault) return absl::InvalidArgumentError(absl::StrCat(what, ": ", fault->reason));
  return value;
}

}  // namespace switchyard
