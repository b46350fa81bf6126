// Normalizers, tokenizer.json's `normalizer`: change a part of a text before it is split.
//
// Supported: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents, ByteLevel, Nmt, BertNormalizer,
// Sequence.  Precompiled is refused at load.
#pragma once

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/text/tokenizer/json_field.h"

namespace switchyard::tokenizer {

struct NormalizedText {
  std::string text;
  // Whether the first character comes from the source's first character, for Metaspace's prepend_scheme `first`.
  bool starts_at_origin = false;
};

// Changes a text in place; thread-safe.  REQUIRES: valid UTF-8; the result is valid, too.  Fails only if a regex hits
// its limit or the text exceeds 1 GiB.
using Normalizer = absl::AnyInvocable<absl::Status(NormalizedText* text) const>;

// Empty when the field is absent.  InvalidArgument names the JSON path of what is wrong.
absl::StatusOr<Normalizer> ParseNormalizer(const Field& field);

}  // namespace switchyard::tokenizer
