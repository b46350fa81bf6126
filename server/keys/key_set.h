// The keys of a keys file (--api_keys_file).  A line has a key; lines that begin with # and empty ones say nothing:
//
//   NAME ROLE sha256:HEX [requests_per_minute=N] [tokens_per_minute=N] [disk_gib=N]
//
// NAME: 1 to 64 letters, digits, or any of . _ -; ROLE: user, trainer or admin; HEX: the SHA-256 of the key, which the
// file does not have.  `switchyard keys new` makes a key and its line.  Immutable, so thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/keys/roles.h"

namespace switchyard::server {

struct ApiKey {
  std::string name;
  Role role = Role::kUser;
  std::string digest;               // SHA-256, 32 bytes
  int64_t requests_per_minute = 0;  // 0 = no limit
  int64_t tokens_per_minute = 0;    // of prompts and answers together; 0 = no limit
  int64_t disk_gib = 0;             // of the files of its training jobs; 0 = no limit
};

class KeySet {
 public:
  static constexpr size_t kMostKeys = 1000;
  static constexpr size_t kMostBytes = size_t{1} << 20;  // of the file

  // Reads the file, which only its owner may use (proto/support/secret_file.h).  INVALID_ARGUMENT: that, or as Parse.
  static absl::StatusOr<KeySet> Read(const std::string& path);
  // INVALID_ARGUMENT lists every bad line as "<file>:<line>: <problem>".  Problems never show what a line says, as that
  // may be a key.
  static absl::StatusOr<KeySet> Parse(absl::string_view text, absl::string_view file);

  // Returns the key that was presented; null if it is none of these.  Compares hashes, and always all of them: the time
  // tells nothing about the keys.
  const ApiKey* Find(absl::string_view presented) const;
  const std::vector<ApiKey>& keys() const { return keys_; }

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace switchyard::server
