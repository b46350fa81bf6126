// A HuggingFace tokenizer.json, every component built from the file: text to token ids and back, with the ids and the
// text of the `tokenizers` library.
//
// Thread-safe: const after it is made; share one.  Owns everything it needs of the file.  Blocks for as long as the
// text takes (linear in it, n log n within a piece): call it on a pool, with a cap and a cancel hook, never on an I/O
// thread. Does not do pairs, offsets, truncation, padding or training.  See README.md for what is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/text/tokenizer/added_tokens.h"
#include "server/text/tokenizer/models/model.h"
#include "server/text/tokenizer/stages/decoder.h"
#include "server/text/tokenizer/stages/normalizer.h"
#include "server/text/tokenizer/stages/post_processor.h"
#include "server/text/tokenizer/stages/pre_tokenizer.h"

namespace switchyard::tokenizer {

// Of a file; the largest seen in the wild has 35 MB.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

// The text that one token adds.
struct TokenPiece {
  std::string text;   // U+FFFD for bytes that are only a part of a character
  std::string bytes;  // the true ones
};

struct EncodeOptions {
  bool add_special_tokens = true;        // the post-processor's (BOS, EOS)
  bool allow_special = true;             // false: special tokens' strings in the text are plain text
  size_t max_text_bytes = 16u << 20;     // longer texts are refused
  std::function<bool()> cancelled = {};  // called now and then from the calling thread; true ends the work
};

class Tokenizer {
 public:
  // NotFound, or InvalidArgument with the file, the JSON path, the expected and the found value.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromFile(const std::string& path);
  // `name` stands for the file in messages.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromJson(absl::string_view json,
                                                                   absl::string_view name = "tokenizer.json");

  // InvalidArgument: text is not UTF-8 (with the byte's offset), or too long (with limit and length).  Cancelled: by
  // the hook.  ResourceExhausted: a regex of the file backtracked beyond its limit on this text.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const EncodeOptions& options = {}) const;

  // Ids that no token has are passed over, as the original does; validate them before if they come from outside.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const;

  // Of a token in the middle of a text, special ones included; both parts empty for an id that no token has.
  TokenPiece PieceOf(int32_t id) const;

  // -1 if there is none.
  int32_t TokenToId(absl::string_view token) const;
  // The token as the file spells it ("Ġthe", "<0x0A>"); empty if no token has this id.  Lives as long as the tokenizer.
  absl::string_view IdToToken(int32_t id) const;
  // Number of distinct tokens, added ones included; ids may have gaps.
  int32_t vocab_size() const { return vocab_size_; }
  // One past the largest id.
  int32_t id_end() const { return id_end_; }
  // Ids that the post-processor puts before the text's own (BOS), and after it.
  const std::vector<int32_t>& ids_before() const { return post_processor_.before; }
  const std::vector<int32_t>& ids_after() const { return post_processor_.after; }
  // FNV-1a of the file's bytes: which tokenizer this is.
  uint64_t file_hash() const { return file_hash_; }

 private:
  friend class StreamDecoder;

  Tokenizer(std::unique_ptr<TokenizerModel> model, Normalizer normalizer, AddedTokens added);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Build(const Field& file);
  void FindAnchor();
  absl::Status EncodeNormalized(NormalizedText text, bool allow_special, WorkGuard* guard,
                                std::vector<int32_t>* ids) const;
  absl::Status EncodePlain(NormalizedText text, WorkGuard* guard, std::vector<int32_t>* ids) const;
  // The decoder's input for an id; empty if no token has it.
  absl::string_view SpellingOf(int32_t id) const;

  const std::unique_ptr<TokenizerModel> model_;
  const Normalizer normalizer_;  // may be empty
  const AddedTokens added_;
  PreTokenizer pre_tokenizer_;  // may be empty
  PostProcessor post_processor_;
  Decoder decoder_;
  int32_t vocab_size_ = 0;
  int32_t id_end_ = 0;
  int32_t anchor_ = -1;      // a letter beside which PieceOf decodes; -1: the vocabulary has no such token
  std::string anchor_text_;  // of the anchor alone, and what another one adds to it
  std::string anchor_again_;
  uint64_t file_hash_ = 0;
};

}  // namespace switchyard::tokenizer
