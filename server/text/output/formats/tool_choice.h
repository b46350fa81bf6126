// Forces a call: text that the caller writes into the prompt as the beginning of the model's output.
//
// What is here: a prefix, so that the output is a call (tool_choice "required") or a call of one function.  What is not
// here: nothing makes the model end the call well, choose a name that exists, or follow the function's schema; that
// takes a grammar in the sampler.  Thread-safe (pure).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/output/formats/output_format.h"

namespace switchyard::text {

// Text up to the arguments of a call of `function`, or, if that is empty, up to the name.  It goes behind the rendered
// prompt, is tokenized with it (special tokens as such), and is pushed into the OutputParser before the output.  A
// prompt that leaves reasoning open must close it first.  InvalidArgument: a name that the format cannot write.
absl::StatusOr<std::string> ForcedCall(const ToolFormat& format, absl::string_view function);

}  // namespace switchyard::text
