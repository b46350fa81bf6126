// Post-processors, tokenizer.json's `post_processor`: put tokens before and after the text's own (BOS, EOS).
//
// Only for single sequences, not for pairs.  Const after construction, thread-safe.  Supported: TemplateProcessing,
// ByteLevel (which does nothing here, as it only changes offsets), RobertaProcessing, BertProcessing, Sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/tokenizer/json_field.h"

namespace switchyard::tokenizer {

// The ids that a post-processor puts before and after the text's own.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// Returns no ids if the field is absent.  `id_end`: one past the largest legal id.
absl::StatusOr<PostProcessor> ParsePostProcessor(const Field& field, int32_t id_end);

}  // namespace switchyard::tokenizer
