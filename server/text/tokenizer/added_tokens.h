// Added tokens (special tokens and added words): strings that are cut out of the text before the model tokenizes the
// rest.
//
// Const after Parse, thread-safe.  Matching is leftmost-longest.  Its time is linear in the text; at worst, if tokens
// begin alike, times the longest added token.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/tokenizer/json_field.h"
#include "server/text/tokenizer/models/vocabulary.h"
#include "server/text/tokenizer/stages/normalizer.h"
#include "server/text/tokenizer/work_guard.h"

namespace switchyard::tokenizer {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  std::string spelling;      // what the decoder gets: the normalized content if `normalized`, else the content
  bool single_word = false;  // matches only if no word character is beside it
  bool lstrip = false;       // includes the whitespace on its left
  bool rstrip = false;       // and on its right
  bool normalized = false;   // is normalized, and matched against the normalized text
  bool special = false;      // is plain text when special tokens are not allowed
  bool skippable = false;    // may be left out of decoded text: its spelling is a special token's content
};

// A set of strings that finds its longest one at a position of a text.
class LongestMatcher {
 public:
  // Adds a text for which Find returns `value`.  Of equal texts the first counts.  REQUIRES: text is not empty.
  void Add(std::string text, int32_t value);
  void Build();
  // Finds the longest added string at `pos` of `text`: returns its value and length; -1 if there is none.
  int32_t Find(absl::string_view text, size_t pos, size_t* length) const;

 private:
  struct Entry {
    std::string text;
    int32_t value;
  };
  std::vector<Entry> entries_;              // sorted
  std::array<uint32_t, 257> first_byte_{};  // entries that begin with byte b: [first_byte_[b], first_byte_[b + 1])
};

class AddedTokens {
 public:
  // Assigns ids as HuggingFace does: the vocabulary's for a token that it contains, else the next free one; the log
  // warns about a file that declares other ids.  `normalizer` may be empty.  `model_vocabulary` is borrowed for this
  // call only.
  static absl::StatusOr<AddedTokens> Parse(const Field& list, const Vocabulary& model_vocabulary,
                                           const Normalizer& normalizer);

  // A part of a text: an added token (id >= 0) or plain text (id = -1).
  struct Part {
    int32_t id;
    size_t begin;
    size_t end;
  };
  // Cuts `text` at the tokens with this value of `normalized`.  The parts cover the text; a token that strips on its
  // right may overlap the next.  Special tokens are text when allow_special is false.
  absl::Status Split(absl::string_view text, bool normalized, bool allow_special, WorkGuard* guard,
                     std::vector<Part>* parts) const;

  // Returns null if the id is not an added token's.
  const AddedToken* Find(int32_t id) const;
  int32_t IdOf(absl::string_view content) const;  // -1: none
  bool IsSkippable(int32_t id) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  absl::Status Add(const Field& field, const Vocabulary& model_vocabulary);
  absl::Status BuildMatchers(const Field& list, const Normalizer& normalizer);

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<int32_t, size_t> by_id_;  // index in tokens_
  absl::flat_hash_map<std::string, size_t> by_content_;
  int32_t next_id_ = 0;
  bool warned_ = false;
  LongestMatcher raw_;  // values are indexes in tokens_
  LongestMatcher normalized_;
};

}  // namespace switchyard::tokenizer
