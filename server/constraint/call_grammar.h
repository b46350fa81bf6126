// Grammars around others: calls of functions whose arguments follow schemas, and reasoning before what is constrained.
// Pure.
//
// Special tokens may be in the texts around: MarkSpecialTokens (constraint_compiler.h) has put their names between
// kSpecialMark.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/grammar/grammar.h"
#include "server/constraint/constraint_spec.h"
#include "server/text/output/formats/output_format.h"

namespace switchyard::server {

// How the format writes arguments that are not JSON.  `mark`: MarkSpecialTokens.
ArgumentMarkup MarkupOf(const text::ToolFormat& format, absl::FunctionRef<std::string(absl::string_view)> mark);

// Of a spec of kCalls; its `reasoning` is left out.  InvalidArgument: "get_weather: $.a: "not" is not
// supported", where a strict schema cannot be held to, or all of them are too large together.
absl::StatusOr<std::unique_ptr<const grammar::Grammar>> GrammarOfCalls(const ConstraintSpec& spec);

// `text`, then at most 4 spaces or line feeds, then `inner`.  InvalidArgument: it is too large.
absl::StatusOr<std::unique_ptr<const grammar::Grammar>> BehindFreeText(const FreeText& text,
                                                                       const grammar::Grammar& inner);

}  // namespace switchyard::server
