// Token strings and ids, both ways.  Const after Parse, thread-safe.  The views it gives live as long as it does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/tokenizer/json_field.h"

namespace switchyard::tokenizer {

// Ids may have gaps, but the largest is bounded: nothing is allocated because a file says so.
inline constexpr int64_t kMaxTokenId = (1 << 22) - 1;

class Vocabulary {
 public:
  // From an object {token: id}.  InvalidArgument: empty, an id that is negative, above kMaxTokenId or given twice.
  static absl::StatusOr<Vocabulary> Parse(const Field& field);

  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // -1 if there is none.
  int32_t IdOf(absl::string_view token) const;
  // Empty if no token has this id (no token is empty).
  absl::string_view TokenOf(int32_t id) const;
  size_t size() const { return ids_.size(); }
  // One past the largest id.
  int32_t id_end() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  Vocabulary() = default;

  std::vector<char> arena_;  // every token's bytes; views point into it, a vector's buffer survives moves
  absl::flat_hash_map<absl::string_view, int32_t> ids_;
  std::vector<absl::string_view> tokens_;  // [id]
};

}  // namespace switchyard::tokenizer
