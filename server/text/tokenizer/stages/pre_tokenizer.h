// Pre-tokenizers, tokenizer.json's `pre_tokenizer`: split normalized text into the pieces that the model tokenizes.
//
// Supported: ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, Digits, Punctuation, CharDelimiterSplit,
// BertPreTokenizer, FixedLength, Sequence.  UnicodeScripts is refused at load.
#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/text/tokenizer/json_field.h"
#include "server/text/tokenizer/pieces.h"

namespace switchyard::tokenizer {

// Splits or rewrites the pieces; thread-safe.  Cancelled: by the guard.  ResourceExhausted: a regex hit its limit.
using PreTokenizer = absl::AnyInvocable<absl::Status(WorkGuard* guard, Pieces* pieces) const>;

// Empty when the field is absent.  InvalidArgument names the JSON path of what is wrong.
absl::StatusOr<PreTokenizer> ParsePreTokenizer(const Field& field);

}  // namespace switchyard::tokenizer
