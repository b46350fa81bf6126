// Normalizers: what tokenizer.json's `normalizer` does to a stretch of text before it is split.
//
// From the file: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents, ByteLevel, Nmt,
// BertNormalizer, Sequence.  Precompiled is refused at load.
#pragma once

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/text/tokenizer/json_field.h"

namespace switchyard::tokenizer {

struct NormalizedText {
  std::string text;
  // The first character comes from the source's first character: Metaspace's prepend_scheme `first` needs to know.
  bool starts_at_origin = false;
};

// Changes a text in place; thread-safe.  REQUIRES: valid UTF-8, which it leaves valid.  Fails only where a regex hits
// its limit or the text outgrows 1 GiB.
using Normalizer = absl::AnyInvocable<absl::Status(NormalizedText* text) const>;

// Empty when the field is absent.  InvalidArgument names the JSON path of what is wrong.
absl::StatusOr<Normalizer> ParseNormalizer(const Field& field);

}  // namespace switchyard::tokenizer
