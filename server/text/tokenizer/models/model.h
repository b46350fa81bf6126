// Interface of a tokenizer's model, which turns one piece of text into ids.  Const after construction, thread-safe.
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
  // Appends the ids of one piece.  Cancelled: by the guard.  REQUIRES: piece is valid UTF-8 and not empty.
  virtual absl::Status Tokenize(absl::string_view piece, WorkGuard* guard, std::vector<int32_t>* ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

// Returns the InvalidArgument for a text that needs the unknown token if the vocabulary lacks that token.  The file
// itself is accepted, as by HuggingFace: with every byte in the vocabulary no text needs the token.
absl::Status UnkError(absl::string_view unknown, absl::string_view unk_token);

// Parses a BPE, WordLevel or WordPiece model, by `type`; old files leave it out, and it is guessed as HuggingFace does.
// Unigram is refused.
absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseModel(const Field& field);

// For ParseModel.  WordLevel: a piece is one token or unknown.  WordPiece: greedy longest match.
absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseWordLevel(const Field& field);
absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseWordPiece(const Field& field);

}  // namespace switchyard::tokenizer
