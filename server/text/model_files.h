// The files of a model that text depends on, whether a directory or a GGUF file has them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "scheduler/base/io/model_dir.h"

namespace switchyard::text {

// The directory; or tokenizer.json, tokenizer_config.json and generation_config.json as the metadata of a GGUF file
// say.  A GGUF file without a vocabulary has no tokenizer.json.  Errors, with the file's name: those of GgufCheckpoint,
// of ModelDir; InvalidArgument for a key of another type.  `tokenizer`: false where another one is used, so that a
// vocabulary which is not understood (else Unimplemented) does not matter.
absl::StatusOr<ModelDir> OpenModelFiles(const std::string& model, bool tokenizer = true);

}  // namespace switchyard::text
