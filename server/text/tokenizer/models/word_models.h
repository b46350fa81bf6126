// WordLevel (a piece is a token or unknown) and WordPiece (greedy longest match).  Const after Parse, thread-safe.
#pragma once

#include <memory>

#include "server/text/tokenizer/models/model.h"

namespace switchyard::tokenizer {

absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseWordLevel(const Field& field);
absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseWordPiece(const Field& field);

}  // namespace switchyard::tokenizer
