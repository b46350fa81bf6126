// Normalizers: what tokenizer.json's `normalizer` does to a stretch of text before it is split.
//
// Const after construction, thread-safe.  From the file: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip,
// StripAccents, ByteLevel, Nmt, BertNormalizer, Sequence.  Not supported, refused at load: Precompiled.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/text/tokenizer/json_reader.h"

namespace switchyard::tokenizer {

struct NormalizedText {
  std::string text;
  // The first character comes from the source's first character: Metaspace's prepend_scheme `first` asks.
  bool starts_at_origin = false;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // REQUIRES: valid UTF-8; leaves valid UTF-8.  Fails only where a regex hits its limit or the text outgrows 1 GiB.
  virtual absl::Status Apply(NormalizedText* text) const = 0;
};

// Null when the field is absent.  InvalidArgument names the JSON path of what is wrong.
absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const Field& field);

}  // namespace switchyard::tokenizer
