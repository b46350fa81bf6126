// The models WordLevel and WordPiece.
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/models/model.h"

namespace switchyard::tokenizer {
namespace {

struct Unk {
  std::string token;
  int32_t id;  // -1 = missing in the vocabulary: see UnkError

  absl::Status Append(absl::string_view unknown, std::vector<int32_t>* ids) const {
    if (id < 0) return UnkError(unknown, token);
    ids->push_back(id);
    return absl::OkStatus();
  }
};

class WordLevelModel : public TokenizerModel {
 public:
  WordLevelModel(Vocabulary vocabulary, Unk unk) : vocabulary_(std::move(vocabulary)), unk_(std::move(unk)) {}

  absl::Status Tokenize(absl::string_view piece, WorkGuard* guard, std::vector<int32_t>* ids) const override {
    const int32_t id = vocabulary_.IdOf(piece);
    if (id < 0) {
      RETURN_IF_ERROR(unk_.Append(piece, ids));
    } else {
      ids->push_back(id);
    }
    return guard->Step();
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  const Vocabulary vocabulary_;
  const Unk unk_;
};

class WordPieceModel : public TokenizerModel {
 public:
  struct Options {
    std::string prefix;
    int64_t max_chars;
    Unk unk;
  };
  WordPieceModel(Vocabulary vocabulary, Options options)
      : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {}

  absl::Status Tokenize(absl::string_view piece, WorkGuard* guard, std::vector<int32_t>* ids) const override {
    const size_t before = ids->size();
    if (!TryTokenize(piece, ids)) {
      ids->resize(before);
      RETURN_IF_ERROR(options_.unk.Append(piece, ids));
    }
    return guard->Step();
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  bool TryTokenize(absl::string_view piece, std::vector<int32_t>* ids) const {
    int64_t num_chars = 0;
    for (size_t pos = 0; pos < piece.size(); pos += Utf8Length(piece[pos])) {
      if (++num_chars > options_.max_chars) return false;
    }
    for (size_t begin = 0; begin < piece.size();) {
      size_t end = piece.size();
      int32_t id = -1;
      while (end > begin) {
        id = vocabulary_.IdOf(absl::StrCat(begin > 0 ? options_.prefix : "", piece.substr(begin, end - begin)));
        if (id >= 0) break;
        (void)DecodeUtf8Before(piece, end, &end);
      }
      if (id < 0) return false;
      ids->push_back(id);
      begin = end;
    }
    return true;
  }

  const Vocabulary vocabulary_;
  const Options options_;
};

absl::StatusOr<Unk> ParseUnk(const Field& field, const Vocabulary& vocabulary, absl::string_view fallback) {
  Unk unk;
  ASSIGN_OR_RETURN(unk.token, field["unk_token"].StringOr(fallback));
  unk.id = vocabulary.IdOf(unk.token);
  return unk;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseWordLevel(const Field& field) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Parse(field["vocab"]));
  ASSIGN_OR_RETURN(Unk unk, ParseUnk(field, vocabulary, "<unk>"));
  return std::make_unique<WordLevelModel>(std::move(vocabulary), std::move(unk));
}

absl::StatusOr<std::unique_ptr<TokenizerModel>> ParseWordPiece(const Field& field) {
  constexpr int64_t kMaxWordChars = 1000;  // time is quadratic in the word's length
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Parse(field["vocab"]));
  WordPieceModel::Options options;
  ASSIGN_OR_RETURN(options.prefix, field["continuing_subword_prefix"].StringOr("##"));
  ASSIGN_OR_RETURN(options.max_chars, field["max_input_chars_per_word"].IntOr(100, 1, kMaxWordChars));
  ASSIGN_OR_RETURN(options.unk, ParseUnk(field, vocabulary, "[UNK]"));
  return std::make_unique<WordPieceModel>(std::move(vocabulary), std::move(options));
}

}  // namespace switchyard::tokenizer
