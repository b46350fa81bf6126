// The pre-tokenizers of byte-level BPE that GGUF files name ("tokenizer.ggml.pre"): what HuggingFace's tokenizer.json
// of the models with that name has.  Another name is one more row.  Thread-safe (constants).
#pragma once

#include "absl/types/span.h"

namespace switchyard::tokenizer {

struct GgufPreTokenizer {
  const char* name;
  absl::Span<const char* const> stages;  // regexes, each of which splits what those before it left; then bytes
  bool nfc = false;                      // the normalizer
  bool ignore_merges = false;            // a piece that is a token is that token
  bool adds_bos = false;                 // where add_bos_token is missing
};

absl::Span<const GgufPreTokenizer> GgufPreTokenizers();

}  // namespace switchyard::tokenizer
