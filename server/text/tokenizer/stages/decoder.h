// Decoders: how tokenizer.json's `decoder` turns token strings back into text, as a chain of stages that takes one
// token at a time.  Decoding a whole text and decoding a stream are the same chain, so they cannot differ.
//
// A Decoder is const and thread-safe; the stages it makes have state and one owner.  From the file: ByteLevel, Replace,
// ByteFallback, Fuse, Strip, Metaspace, WordPiece, BPEDecoder, Sequence.  Refused at load: CTC.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/tokenizer/json_reader.h"

namespace switchyard::tokenizer {

// One stage.  A token arrives as any number of Text calls, each with whole characters, and one EndToken; stages that
// join tokens (Fuse, ByteLevel) pass on one token that only ends at Finish.  That lets text flow before the end is
// known.
class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  virtual absl::Status Text(absl::string_view text) = 0;
  virtual absl::Status EndToken() = 0;
  // No more tokens: passes on what is held back, then finishes the next stage.
  virtual absl::Status Finish() = 0;
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // A stage in its initial state that feeds `next`.  It borrows this decoder.
  virtual std::unique_ptr<DecoderStage> NewMigration(std::unique_ptr<DecoderStage> next) const = 0;
};

// Joining with spaces, when the field is absent.  InvalidArgument names the JSON path of what is wrong.
absl::StatusOr<std::unique_ptr<Decoder>> ParseDecoder(const Field& field);

}  // namespace switchyard::tokenizer
