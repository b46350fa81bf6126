// What serving needs of tokenizer_config.json, beside tokenizer.json: the special tokens by role, as strings (chat
// templates use them).
//
// add_bos_token and add_eos_token are not read: where there is a tokenizer.json, transformers 5 drops them and leaves
// BOS and EOS to its post_processor.
//
// A value; reading is a pure function of the text.  The chat template in the same file is read by chat_template/.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::tokenizer {

struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  std::optional<std::string> unk_token;
  std::string tokenizer_class;  // empty if the file has none

  // A token is a string or an AddedToken object with `content`.  InvalidArgument names the file and the JSON path.
  static absl::StatusOr<TokenizerConfig> FromJson(absl::string_view json,
                                                  absl::string_view name = "tokenizer_config.json");
};

}  // namespace switchyard::tokenizer
