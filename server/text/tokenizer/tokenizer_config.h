// Reads the EOS token of tokenizer_config.json or special_tokens_map.json, beside tokenizer.json.
//
// add_bos_token and add_eos_token are not read: where there is a tokenizer.json, transformers 5 drops them and leaves
// BOS and EOS to its post_processor.  The chat template in the same file is read by chat_template/.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::tokenizer {

// A token is a string or an AddedToken object with `content`; nullopt when the file has no EOS token.  The other
// special tokens are checked alike.  InvalidArgument names the file and the JSON path.
absl::StatusOr<std::optional<std::string>> ReadEosToken(absl::string_view json, absl::string_view name);

}  // namespace switchyard::tokenizer
