// Decoders, tokenizer.json's `decoder`: turn token strings back into text, by a chain of stages that takes one token at
// a time.  Decoding a whole text and decoding a stream use the same chain, so they cannot differ.
//
// Supported: ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, WordPiece, BPEDecoder, Sequence.  CTC is refused
// at load.
#pragma once

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/tokenizer/json_field.h"

namespace switchyard::tokenizer {

// A stage, which has state and one owner.  A token arrives as any number of Text calls, each with whole characters, and
// one EndToken.  Stages that join tokens (Fuse, ByteLevel) pass on one token that only ends at Finish, so text can be
// passed on before the end is known.
class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  virtual absl::Status Text(absl::string_view text) = 0;
  virtual absl::Status EndToken() = 0;
  // There are no more tokens: passes on any text held back, then finishes the next stage.
  virtual absl::Status Finish() = 0;
};

// Makes a stage in its initial state that feeds `next`.  Thread-safe; the stage borrows the decoder.
using Decoder = absl::AnyInvocable<std::unique_ptr<DecoderStage>(std::unique_ptr<DecoderStage> next) const>;

// Joins with spaces when the field is absent.  InvalidArgument names the JSON path of what is wrong.
absl::StatusOr<Decoder> ParseDecoder(const Field& field);

}  // namespace switchyard::tokenizer
