// Turns one choice's tokens into text: incremental detokenization and stop strings.
//
// Text that might begin a stop string is held back until it is known not to.  A stop string may span tokens and
// characters; the earliest match wins, and among those that start there the first in the list.
// Thread-compatible; the engine loop owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/request.h"
#include "server/engine/stop_strings.h"
#include "server/text/tokenizer/stream_decoder.h"

namespace switchyard::server {

class ChoiceOutput {
 public:
  // `request` and `stops`, its stop strings, are borrowed.  `tokenizer` may be null: then there is no text.
  ChoiceOutput(const InferenceRequest* request, const StopStrings* stops, const tokenizer::Tokenizer* tokenizer);

  // Adds the next token; returns the text that can be sent now.
  std::string Take(int32_t token, int32_t index);
  // The stop string that Take found, if any; the text before it was returned.
  const std::optional<std::string>& stop_string() const { return stop_string_; }
  // The stop token that ended the choice; -1 if none did.
  int32_t stop_token() const { return stop_token_; }
  // Returns the text held back, at the end of a choice that no stop string ended.
  std::string Flush();

  absl::Time last_token_time = absl::InfinitePast();

 private:
  std::string Show(std::string text, bool look_for_stops);

  const InferenceRequest* const request_;
  const StopStrings* const stops_;
  std::unique_ptr<tokenizer::StreamDecoder> decoder_;
  std::string held_;             // the longest end of the text so far that is a prefix of a stop string
  std::vector<size_t> matched_;  // [stops] of StopStrings::Find
  std::optional<std::string> stop_string_;
  int32_t stop_token_ = -1;
};

}  // namespace switchyard::server
