#include "server/tokenizer/word_models.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/tokenizer/utf8.h"

namespace switchyard {
namespace {

class WordLevelModel : public Model {
 public:
  WordLevelModel(Vocabulary vocabulary, int32_t unk_id) : vocabulary_(std::move(vocabulary)), unk_id_(unk_id) {}

  absl::Status Tokenize(absl::string_view piece, WorkGuard* guard, std::vector<int32_t>* ids) const override {
    const int32_t id = vocabulary_.IdOf(piece);
    ids->push_back(id >= 0 ? id : unk_id_);
    return guard->Step();
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  const Vocabulary vocabulary_;
  const int32_t unk_id_;
};

class WordPieceModel : public Model {
 public:
  struct Options {
    std::string prefix;
    int64_t max_chars;
    int32_t unk_id;
  };
  WordPieceModel(Vocabulary vocabulary, Options options)
      : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {}

  absl::Status Tokenize(absl::string_view piece, WorkGuard* guard, std::vector<int32_t>* ids) const override {
    const size_t before = ids->size();
    if (!TryTokenize(piece, ids)) {
      ids->resize(before);
      ids->push_back(options_.unk_id);
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

absl::StatusOr<int32_t> UnkId(const Field& field, const Vocabulary& vocabulary, absl::string_view fallback) {
  const Field unk = field["unk_token"];
  ASSIGN_OR_RETURN(const std::string token, unk.StringOr(fallback));
  const int32_t id = vocabulary.IdOf(token);
  if (id < 0) return unk.Error(absl::StrCat("expected a token of model.vocab, found ", Quoted(token)));
  return id;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> ParseWordLevel(const Field& field) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Parse(field["vocab"]));
  ASSIGN_OR_RETURN(const int32_t unk_id, UnkId(field, vocabulary, "<unk>"));
  return std::make_unique<WordLevelModel>(std::move(vocabulary), unk_id);
}

absl::StatusOr<std::unique_ptr<Model>> ParseWordPiece(const Field& field) {
  constexpr int64_t kMaxWordChars = 1000;  // quadratic in it
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Parse(field["vocab"]));
  WordPieceModel::Options options;
  ASSIGN_OR_RETURN(options.prefix, field["continuing_subword_prefix"].StringOr("##"));
  ASSIGN_OR_RETURN(options.max_chars, field["max_input_chars_per_word"].IntOr(100, 1, kMaxWordChars));
  ASSIGN_OR_RETURN(options.unk_id, UnkId(field, vocabulary, "[UNK]"));
  return std::make_unique<WordPieceModel>(std::move(vocabulary), std::move(options));
}

}  // namespace switchyard
