#include "server/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/models/byte_level.h"
#include "server/text/tokenizer/stream_decoder.h"

namespace switchyard::tokenizer {

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::FromFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  const auto size = static_cast<int64_t>(file.tellg());
  if (size < 0 || size > kMaxTokenizerBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", size, " bytes, the limit is ", kMaxTokenizerBytes));
  }
  std::string json(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(json.data(), size)) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  if (IsLfsPointer(json)) return absl::InvalidArgumentError(absl::StrCat(path, ": ", kLfsAdvice));
  return FromJson(json, path);
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::FromJson(absl::string_view json, absl::string_view name) {
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(json, name));
  std::unique_ptr<Tokenizer> tokenizer;
  ASSIGN_OR_RETURN(tokenizer, Build(Field(&document, name)));
  tokenizer->file_hash_ = Fnv1a(json);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Build(const Field& file) {
  RETURN_IF_ERROR(file.CheckObject());
  if (file["version"].present()) {
    ASSIGN_OR_RETURN(const std::string version, file["version"].String());
    if (version != "1.0") return file["version"].Expected("\"1.0\"");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<TokenizerModel> model, ParseModel(file["model"]));
  ASSIGN_OR_RETURN(Normalizer normalizer, ParseNormalizer(file["normalizer"]));
  ASSIGN_OR_RETURN(AddedTokens added, AddedTokens::Parse(file["added_tokens"], model->vocabulary(), normalizer));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(model), std::move(normalizer), std::move(added)));
  ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_, ParsePreTokenizer(file["pre_tokenizer"]));
  ASSIGN_OR_RETURN(tokenizer->post_processor_, ParsePostProcessor(file["post_processor"], tokenizer->id_end_));
  ASSIGN_OR_RETURN(tokenizer->decoder_, ParseDecoder(file["decoder"]));
  tokenizer->FindAnchor();
  return tokenizer;
}

Tokenizer::Tokenizer(std::unique_ptr<TokenizerModel> model, Normalizer normalizer, AddedTokens added)
    : model_(std::move(model)), normalizer_(std::move(normalizer)), added_(std::move(added)) {
  const Vocabulary& vocabulary = model_->vocabulary();
  vocab_size_ = static_cast<int32_t>(vocabulary.size());
  id_end_ = vocabulary.id_end();
  for (const AddedToken& token : added_.tokens()) {
    vocab_size_ += vocabulary.TokenOf(token.id).empty();
    id_end_ = std::max(id_end_, token.id + 1);
  }
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text, const EncodeOptions& options) const {
  if (text.size() > options.max_text_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: ", text.size(), " bytes, the limit is ", options.max_text_bytes));
  }
  if (const size_t bad = FindInvalidUtf8(text); bad != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("text: not valid UTF-8 at byte ", bad));
  }
  WorkGuard guard(options.cancelled);
  RETURN_IF_ERROR(guard.Ask());
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = post_processor_.before;
  std::vector<AddedTokens::Part> parts;
  RETURN_IF_ERROR(added_.Split(text, /*normalized=*/false, options.allow_special, &guard, &parts));
  for (const AddedTokens::Part& part : parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    NormalizedText piece{std::string(text.substr(part.begin, part.end - part.begin)), part.begin == 0};
    if (normalizer_) RETURN_IF_ERROR(normalizer_(&piece));
    RETURN_IF_ERROR(EncodeNormalized(std::move(piece), options.allow_special, &guard, &ids));
  }
  if (options.add_special_tokens) ids.insert(ids.end(), post_processor_.after.begin(), post_processor_.after.end());
  return ids;
}

absl::Status Tokenizer::EncodeNormalized(NormalizedText text, bool allow_special, WorkGuard* guard,
                                         std::vector<int32_t>* ids) const {
  std::vector<AddedTokens::Part> parts;
  RETURN_IF_ERROR(added_.Split(text.text, /*normalized=*/true, allow_special, guard, &parts));
  if (parts.size() == 1 && parts[0].id < 0) return EncodePlain(std::move(text), guard, ids);
  for (const AddedTokens::Part& part : parts) {
    if (part.id >= 0) {
      ids->push_back(part.id);
      continue;
    }
    const bool starts_at_origin = text.starts_at_origin && part.begin == 0;
    RETURN_IF_ERROR(EncodePlain({text.text.substr(part.begin, part.end - part.begin), starts_at_origin}, guard, ids));
  }
  return absl::OkStatus();
}

// Encodes a text without added tokens.
absl::Status Tokenizer::EncodePlain(NormalizedText text, WorkGuard* guard, std::vector<int32_t>* ids) const {
  Pieces pieces;
  pieces.spans.push_back({0, text.text.size()});
  pieces.text = std::move(text.text);
  pieces.starts_at_origin = text.starts_at_origin;
  if (pre_tokenizer_) RETURN_IF_ERROR(pre_tokenizer_(guard, &pieces));
  for (const Match span : pieces.spans) RETURN_IF_ERROR(model_->Tokenize(pieces.View(span), guard, ids));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  StreamDecoder stream(this, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) RETURN_IF_ERROR(stream.Append(id, &text));
  RETURN_IF_ERROR(stream.Flush(&text));
  return text;
}

void Tokenizer::FindAnchor() {
  const int32_t id = model_->vocabulary().IdOf("a");
  if (id < 0) return;
  const absl::StatusOr<std::string> one = Decode({id}, false), two = Decode({id, id}, false);
  if (!one.ok() || !two.ok() || !absl::StartsWith(*two, *one)) return;
  anchor_ = id;
  anchor_text_ = *one;
  anchor_again_ = two->substr(one->size());
}

// Decoders treat the ends of a text differently (they remove a prepended space), so the token is decoded between two
// anchors.
TokenPiece Tokenizer::PieceOf(int32_t id) const {
  const absl::string_view spelling = SpellingOf(id);
  if (spelling.empty()) return {};
  TokenPiece piece;
  const bool anchored = anchor_ >= 0;
  const absl::StatusOr<std::string> text = anchored ? Decode({anchor_, id, anchor_}, false) : Decode({id}, false);
  absl::string_view middle = text.ok() ? absl::string_view(*text) : spelling;  // a regex of the decoder hit its limit
  if (text.ok() && anchored) {
    const bool inside = absl::ConsumePrefix(&middle, anchor_text_) && absl::ConsumeSuffix(&middle, anchor_again_);
    if (!inside) middle = spelling;
  }
  piece.text = std::string(middle);
  if (!absl::StrContains(piece.text, kReplacementCharacter)) {
    piece.bytes = piece.text;
  } else if (const int byte = ByteOfToken(spelling); byte >= 0) {
    piece.bytes.push_back(static_cast<char>(byte));
  } else {
    AppendByteLevelDecoded(spelling, &piece.bytes);
  }
  return piece;
}

int32_t Tokenizer::TokenToId(absl::string_view token) const {
  const int32_t added = added_.IdOf(token);
  return added >= 0 ? added : model_->vocabulary().IdOf(token);
}

absl::string_view Tokenizer::IdToToken(int32_t id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr ? absl::string_view(added->content) : model_->vocabulary().TokenOf(id);
}

absl::string_view Tokenizer::SpellingOf(int32_t id) const {
  const AddedToken* added = added_.Find(id);
  return added != nullptr ? absl::string_view(added->spelling) : model_->vocabulary().TokenOf(id);
}

}  // namespace switchyard::tokenizer
