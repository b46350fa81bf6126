#include "server/text/tokenizer/models/model.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "server/text/tokenizer/models/bpe_model.h"

namespace switchyard::tokenizer {

absl::Status UnkError(absl::string_view unknown, absl::string_view unk_token) {
  return absl::InvalidArgumentError(absl::StrCat("text: the tokenizer's vocabulary does not have ", Quote(unknown),
                                                 ", nor the unk_token ", Quote(unk_token), " that would replace it"));
}

absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseModel(const Field& field) {
  RETURN_IF_ERROR(field.CheckObject());
  // Only BPE has merges; without a type and merges, a file is a Unigram, a WordPiece or a WordLevel.
  ASSIGN_OR_RETURN(const std::string type, field["type"].StringOr(field["merges"].present() ? "BPE" : ""));
  if (type == "BPE") return BpeModel::Parse(field);
  if (type == "WordLevel") return ParseWordLevel(field);
  if (type == "WordPiece") return ParseWordPiece(field);
  return field["type"].Expected("BPE, WordPiece or WordLevel (other model types are not supported)");
}

}  // namespace switchyard::tokenizer
