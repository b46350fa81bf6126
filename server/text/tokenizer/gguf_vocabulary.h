// The tokenizer of a GGUF file as the text of a tokenizer.json, so that Tokenizer::FromJson stays the only reader.
//
// Of byte-level BPE ("gpt2") a file has the vocabulary, the merges and the name of a pre-tokenizer; normalizer and
// regexes of that name are a table (gguf_pre_tokenizers.h).  Of SentencePiece's BPE ("llama": Llama 2, Mixtral) it has
// the vocabulary with scores, by which the merges are made as transformers makes them.  Thread-safe (pure).
// Errors: Unimplemented for another kind of vocabulary, or for a name that the table lacks, with those that it has;
// InvalidArgument 'key "x": …' for ids out of range, and lists of other lengths.
// Does not do: SentencePiece's unigram models ("t5"), reading the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::tokenizer {

// tokenizer.ggml.token_type
enum class GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// The metadata under "tokenizer.ggml.", by its keys.  Views must live as long as this.
struct GgufVocabulary {
  std::string model = {};                      // "gpt2": byte-level BPE; "llama": SentencePiece's BPE
  std::string pre = {};                        // "qwen2"; of "gpt2"
  std::vector<absl::string_view> tokens = {};  // by id
  std::vector<int32_t> token_type = {};        // of each token; empty: all are normal
  std::vector<absl::string_view> merges = {};  // "Ġ t", the first one first; of "gpt2"
  std::vector<double> scores = {};             // of each token, the highest is merged first; of "llama"
  std::optional<bool> add_space_prefix = {};   // whether a text begins with a space; of "llama", without it: yes
  std::optional<int32_t> bos_token_id = {};
  std::optional<int32_t> eos_token_id = {};
  std::optional<bool> add_bos_token = {};  // without it the pre-tokenizer's models decide
  std::optional<bool> add_eos_token = {};  // without it: no
};

absl::StatusOr<std::string> TokenizerJsonOf(const GgufVocabulary& vocabulary);

}  // namespace switchyard::tokenizer
