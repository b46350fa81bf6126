// Post-processors: the tokens that tokenizer.json's `post_processor` puts around the text's own (BOS, EOS).
//
// Only single sequences, no pairs.  Const after construction, thread-safe.  From the file: TemplateProcessing,
// ByteLevel (it moves offsets only: nothing here), RobertaProcessing, BertProcessing, Sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/tokenizer/json_field.h"

namespace switchyard::tokenizer {

// The result of each: ids before and after the text's own.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// Does nothing when the field is absent.  `id_end` is one past the largest legal id.
absl::StatusOr<PostProcessor> ParsePostProcessor(const Field& field, int32_t id_end);

}  // namespace switchyard::tokenizer
