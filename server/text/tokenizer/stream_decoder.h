// Decodes token ids into text one at a time, as a model generates them.
//
// The texts of Append and Flush, joined, are exactly Tokenizer::Decode of all the ids; each part is valid UTF-8 and
// never half a character.  Time and memory per id do not grow with the number of ids, except for text held back: bytes
// that do not form a character yet, and with byte fallback a run of <0xHH> tokens (one bad byte changes the text of the
// whole run).  A decoder whose Replace is a regex behind Fuse or ByteLevel holds all text until Flush.
//
// Thread-compatible: one owner.  Borrows the tokenizer, which must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/text/tokenizer/stages/decoder.h"

namespace switchyard::tokenizer {

class Tokenizer;

class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer* tokenizer, bool skip_special_tokens);
  StreamDecoder(StreamDecoder&&) = default;

  // Appends the text that is final now; nothing for an id without a token.  ResourceExhausted: a regex of the decoder
  // hit its limit.
  absl::Status Append(int32_t id, std::string* text);
  // Appends the rest.  REQUIRES: Flush was not called before; Append is not called afterwards.
  absl::Status Flush(std::string* text);

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<std::string> ready_;  // output of the chain's end; at a fixed address
  std::unique_ptr<DecoderStage> chain_;
};

}  // namespace switchyard::tokenizer
