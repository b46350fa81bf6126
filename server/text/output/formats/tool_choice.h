// Forces a call: text that the caller writes into the prompt as the beginning of the model's output.
//
// What is here: a prefix, so that the output is a call (tool_choice "required") or a call of one function.  What makes
// the model choose a name that exists, follow the function's schema and end the call is a constraint of the rest
// (server/constraint/call_grammar.h).  Thread-safe (pure).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/output/formats/output_format.h"

namespace switchyard::text {

// Begins the answer of a model that writes channels, so that no reasoning comes before it.
inline constexpr absl::string_view kFinalChannel = "<|channel|>final<|message|>";

// Text up to the arguments of a call of `function`, or, if that is empty, up to the name.  It goes behind the rendered
// prompt, is tokenized with it (special tokens as such), and is pushed into the OutputParser before the output.  A
// prompt that leaves reasoning open must close it first.  InvalidArgument: a name that the format cannot write.
absl::StatusOr<std::string> ForcedCall(const ToolFormat& format, absl::string_view function);

}  // namespace switchyard::text
