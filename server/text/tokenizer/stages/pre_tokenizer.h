// Pre-tokenizers: what tokenizer.json's `pre_tokenizer` does: cuts normalized text into the pieces that the model sees.
//
// Const after construction, thread-safe.  From the file: ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit,
// Digits, Punctuation, CharDelimiterSplit, BertPreTokenizer, FixedLength, Sequence.  Refused at load: UnicodeScripts.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/text/tokenizer/json_reader.h"
#include "server/text/tokenizer/pieces.h"

namespace switchyard::tokenizer {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cancelled when the guard says so; ResourceExhausted when a regex hits its limit.
  virtual absl::Status Apply(WorkGuard* guard, Pieces* pieces) const = 0;
};

// Null when the field is absent.  InvalidArgument names the JSON path of what is wrong.
absl::StatusOr<std::unique_ptr<PreTokenizer>> ParsePreTokenizer(const Field& field);

}  // namespace switchyard::tokenizer
