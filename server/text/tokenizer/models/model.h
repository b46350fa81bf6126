// A tokenizer's model: ids for one piece of text.  Const after construction, thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/tokenizer/json_field.h"
#include "server/text/tokenizer/models/vocabulary.h"
#include "server/text/tokenizer/work_guard.h"

namespace switchyard::tokenizer {

class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  // Appends the ids of one piece.  Cancelled by the guard.  REQUIRES: piece is valid UTF-8 and not empty.
  virtual absl::Status Tokenize(absl::string_view piece, WorkGuard* guard, std::vector<int32_t>* ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

// The InvalidArgument of a text that needs the unknown token where the vocabulary does not have that token.  The file
// is not refused for it: HuggingFace loads it, and with every byte in the vocabulary no text needs it.
absl::Status UnkError(absl::string_view unknown, absl::string_view unk_token);

// BPE, WordLevel or WordPiece, by `type` (files of old leave it out: guessed as HuggingFace guesses).  Unigram is
// refused.
absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseModel(const Field& field);

// For ParseModel: a piece is a token or unknown; the greedy longest match.
absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseWordLevel(const Field& field);
absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseWordPiece(const Field& field);

}  // namespace switchyard::tokenizer
