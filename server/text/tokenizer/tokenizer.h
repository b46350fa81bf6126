// A tokenizer that is built from a HuggingFace tokenizer.json: turns text into token ids and back, with the same ids
// and text as the `tokenizers` library.
//
// Thread-safe: const after it is made; share one.  Keeps no reference to the file.  Takes time that is linear in the
// text (n log n within a piece): call it on a thread pool, with a limit and a cancel hook, never on an I/O thread.
// Does not support pairs, offsets, truncation, padding or training.  README.md lists the components that are refused.
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

// Limit of a file's size; the largest known one has 35 MB.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

// The text that one token adds.
struct TokenPiece {
  std::string text;   // U+FFFD for bytes that are only a part of a character
  std::string bytes;  // the token's exact bytes
};

struct EncodeOptions {
  bool add_special_tokens = true;        // the post-processor's (BOS, EOS)
  bool allow_special = true;             // false: special tokens' strings in the text are plain text
  size_t max_text_bytes = 16u << 20;     // longer texts are refused
  std::function<bool()> cancelled = {};  // called at intervals on the calling thread; true ends the work
};

class Tokenizer {
 public:
  // NotFound, or InvalidArgument with the file, the JSON path, the expected and the found value.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromFile(const std::string& path);
  // `name`: the file's name in messages.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromJson(absl::string_view json,
                                                                   absl::string_view name = "tokenizer.json");

  // InvalidArgument: the text is not UTF-8 (with the byte's offset) or too long (with limit and length).  Cancelled: by
  // the hook.  ResourceExhausted: a regex of the file backtracked beyond its limit.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const EncodeOptions& options = {}) const;

  // Ignores ids without a token, as HuggingFace does; callers must validate ids from outside.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const;

  // Returns what the token adds in the middle of a text, also for a special one; both parts are empty for an id without
  // a token.
  TokenPiece PieceOf(int32_t id) const;

  // Whether Decode may leave the token out, as a special one.
  bool IsSkippable(int32_t id) const { return added_.IsSkippable(id); }
  // Returns -1 if there is none.
  int32_t TokenToId(absl::string_view token) const;
  // Returns the token as the file spells it ("Ġthe", "<0x0A>"); empty for an id without a token.  Lives as long as the
  // tokenizer.
  absl::string_view IdToToken(int32_t id) const;
  // Number of distinct tokens, added ones included; ids may have gaps.
  int32_t vocab_size() const { return vocab_size_; }
  // One past the largest id.
  int32_t id_end() const { return id_end_; }
  // Ids that the post-processor puts before the text's own (BOS), and after it.
  const std::vector<int32_t>& ids_before() const { return post_processor_.before; }
  const std::vector<int32_t>& ids_after() const { return post_processor_.after; }
  // FNV-1a of the file's bytes, which identifies the tokenizer.
  uint64_t file_hash() const { return file_hash_; }

 private:
  friend class StreamDecoder;

  Tokenizer(std::unique_ptr<TokenizerModel> model, Normalizer normalizer, AddedTokens added);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Build(const Field& file);
  void FindAnchor();
  absl::Status EncodeNormalized(NormalizedText text, bool allow_special, WorkGuard* guard,
                                std::vector<int32_t>* ids) const;
  absl::Status EncodePlain(NormalizedText text, WorkGuard* guard, std::vector<int32_t>* ids) const;
  // Returns the decoder's input for an id; empty for an id without a token.
  absl::string_view SpellingOf(int32_t id) const;

  const std::unique_ptr<TokenizerModel> model_;
  const Normalizer normalizer_;  // may be empty
  const AddedTokens added_;
  PreTokenizer pre_tokenizer_;  // may be empty
  PostProcessor post_processor_;
  Decoder decoder_;
  int32_t vocab_size_ = 0;
  int32_t id_end_ = 0;
  int32_t anchor_ = -1;      // token of a letter around which PieceOf decodes; -1: none
  std::string anchor_text_;  // text of one anchor, and the text that a second one adds
  std::string anchor_again_;
  uint64_t file_hash_ = 0;
};

}  // namespace switchyard::tokenizer
