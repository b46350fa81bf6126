// Byte-pair encoding as HuggingFace `tokenizers` does it.  Const after Parse, thread-safe.
//
// A piece's characters become symbols; the pair with the lowest rank merges first (leftmost among equals) until no pair
// of the table is left.  Time O(n log n) in the piece, without recursion.  Dropout (training only) is ignored when 0
// and refused otherwise.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "server/text/tokenizer/models/model.h"

namespace switchyard::tokenizer {

class BpeModel : public TokenizerModel {
 public:
  static absl::StatusOr<std::unique_ptr<BpeModel>> Parse(const Field& field);

  absl::Status Tokenize(absl::string_view piece, WorkGuard* guard, std::vector<int32_t>* ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  static constexpr char32_t kIndexedCharacters = 0x3000;
  struct Merge {
    int32_t rank;
    int32_t new_id;
  };
  struct Symbol;
  class Merger;

  explicit BpeModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  absl::Status ParseOptions(const Field& field);
  absl::Status ParseMerges(const Field& list);
  // `here` makes the entry's field, for errors.
  absl::Status AddMerge(absl::FunctionRef<Field()> here, absl::string_view left, absl::string_view right, int32_t rank);
  void IndexCharacters();

  // Splits a piece into characters as symbols; unknown ones become bytes or unk.
  absl::Status SplitIntoSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const;
  int32_t CharacterId(absl::string_view piece, size_t begin, size_t end) const;
  bool AppendBytes(absl::string_view character, std::vector<int32_t>* symbols) const;
  static uint64_t PairKey(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Merge* FindMerge(int32_t left, int32_t right) const;

  Vocabulary vocabulary_;
  absl::flat_hash_map<uint64_t, Merge> merges_;  // (left id, right id) -> rank and new id
  std::vector<int32_t> character_ids_;  // [code point below kIndexedCharacters] id of that character, -1 = none
  std::vector<int32_t> byte_ids_;       // [byte] id of <0xHH>, -1 = none; empty without byte_fallback
  std::string subword_prefix_;
  std::string word_suffix_;
  int32_t unk_id_ = -1;
  std::optional<std::string> missing_unk_;  // the unk_token, if the vocabulary lacks it: see UnkError
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
};

}  // namespace switchyard::tokenizer
