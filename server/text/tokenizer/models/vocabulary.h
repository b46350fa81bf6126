// Vocabulary: maps token strings to ids and back.  Const after Parse, thread-safe.  Returned views live as long as it
// does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/tokenizer/json_field.h"

namespace switchyard::tokenizer {

// Ids may have gaps, but the largest is bounded, since tables are sized by it.
inline constexpr int64_t kMaxTokenId = (1 << 22) - 1;

class Vocabulary {
 public:
  // Parses an object {token: id}.  InvalidArgument: empty, or an id that is negative, above kMaxTokenId or repeated.
  static absl::StatusOr<Vocabulary> Parse(const Field& field);

  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // Returns -1 if there is none.
  int32_t IdOf(absl::string_view token) const;
  // Returns an empty view if no token has this id (tokens are never empty).
  absl::string_view TokenOf(int32_t id) const;
  size_t size() const { return ids_.size(); }
  // One past the largest id.
  int32_t id_end() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  Vocabulary() = default;

  std::vector<char> arena_;  // every token's bytes; views point into it, and moving keeps a vector's buffer
  absl::flat_hash_map<absl::string_view, int32_t> ids_;
  std::vector<absl::string_view> tokens_;  // [id]
};

}  // namespace switchyard::tokenizer
