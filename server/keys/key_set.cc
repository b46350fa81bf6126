#include "server/keys/key_set.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/support/api_key.h"
#include "proto/support/secret_file.h"
#include "scheduler/base/constant_time.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr size_t kMostKeyNameBytes = 64;
constexpr size_t kMostKeyProblems = 20;  // that one error names
constexpr int64_t kMostPerMinute = int64_t{1} << 50;
constexpr int64_t kMostDiskGib = int64_t{1} << 30;

bool IsKeyName(absl::string_view text) {
  return !text.empty() && text.size() <= kMostKeyNameBytes && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

// Sets the digest; returns false if the text is not sha256: and 64 hex digits.
bool TakeDigest(absl::string_view text, std::string* digest) {
  if (!absl::ConsumePrefix(&text, "sha256:") || text.size() != 2 * rpc::kKeyDigestBytes) return false;
  if (!std::all_of(text.begin(), text.end(),
                   [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); }))
    return false;
  *digest = absl::HexStringToBytes(text);
  return true;
}

// Takes a quota of the line; returns what is wrong, or "".
std::string TakeQuota(absl::string_view text, ApiKey* key) {
  struct Quota {
    const char* name;
    int64_t* value;
    int64_t most;
  };
  for (const auto& [name, value, most] : {Quota{"requests_per_minute=", &key->requests_per_minute, kMostPerMinute},
                                          {"tokens_per_minute=", &key->tokens_per_minute, kMostPerMinute},
                                          {"disk_gib=", &key->disk_gib, kMostDiskGib}}) {
    if (!absl::ConsumePrefix(&text, name)) continue;
    if (*value != 0) return "a quota is given twice";
    if (absl::SimpleAtoi(text, value) && *value >= 1 && *value <= most) return "";
    return absl::StrCat("a quota must be a whole number in [1, ", most, "]");
  }
  return "after the hash only requests_per_minute=N, tokens_per_minute=N and disk_gib=N may follow";
}

// Takes a line; returns what is wrong, or "".
std::string TakeLine(absl::string_view line, ApiKey* key) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() < 3) return "must be NAME ROLE sha256:HEX, perhaps with quotas behind it";
  if (!IsKeyName(words[0])) {
    return absl::StrCat("the name must be 1 to ", kMostKeyNameBytes, " letters, digits, or any of . _ -");
  }
  key->name = std::string(words[0]);
  const std::optional<Role> role = ParseRole(words[1]);
  if (!role.has_value()) return "the role must be user, trainer or admin";
  key->role = *role;
  if (!TakeDigest(words[2], &key->digest)) {
    return "the hash must be sha256: and 64 hex digits, as `switchyard keys new` prints it";
  }
  for (size_t i = 3; i < words.size(); ++i) {
    if (std::string problem = TakeQuota(words[i], key); !problem.empty()) return problem;
  }
  return "";
}

}  // namespace

absl::StatusOr<KeySet> KeySet::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, rpc::ReadSecretFile(path, kMostBytes));
  return Parse(text, path);
}

absl::StatusOr<KeySet> KeySet::Parse(absl::string_view text, absl::string_view file) {
  KeySet set;
  std::vector<std::string> problems;
  std::map<std::string, int> line_of_name, line_of_digest;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    ApiKey key;
    std::string problem = TakeLine(line, &key);
    if (problem.empty()) {
      const auto [name, new_name] = line_of_name.try_emplace(key.name, number);
      const auto [digest, new_digest] = line_of_digest.try_emplace(key.digest, number);
      if (!new_name) problem = absl::StrCat("has the name of line ", name->second);
      if (!new_digest) problem = absl::StrCat("has the key of line ", digest->second);
      if (set.keys_.size() == kMostKeys) problem = absl::StrCat("too many keys, limit ", kMostKeys);
    }
    if (problem.empty()) {
      set.keys_.push_back(std::move(key));
    } else if (problems.size() < kMostKeyProblems) {
      problems.push_back(absl::StrCat(file, ":", number, ": ", problem));
    }
  }
  if (problems.empty() && set.keys_.empty()) problems.push_back(absl::StrCat(file, ": has no keys"));
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  return set;
}

const ApiKey* KeySet::Find(absl::string_view presented) const {
  const std::string digest = rpc::DigestOfKey(presented);
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {
    if (ConstantTimeEqual(key.digest, digest)) found = &key;
  }
  return found;
}

}  // namespace switchyard::server
