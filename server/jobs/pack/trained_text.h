// Finds the bytes of a conversation's text that are trained, and their tokens.
//
// `{% generation %}` blocks of the template mark them.  Without such blocks the template is rendered up to an
// assistant's message with a generation prompt, and up to and including the message; the difference is trained.  So the
// header of the turn is not trained, the EOS that ends it is, and white space after that EOS is not.  A template that
// renders a beginning differently within the whole (some leave out earlier reasoning) is an error; nothing is guessed.
// Of a document with prompt_messages nothing is trained that begins within these, rendered with a generation prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/jobs/pack/document.h"
#include "server/text/chat_template/model_chat_template.h"

namespace switchyard::server {

struct TrainedText {
  std::string text;
  std::vector<text::TextSpan> trained;  // rising, none empty
};

// REQUIRES: a document of kMessages.  `eos`: the EOS token's text.  Templates that print a date see 1 January 1970.
// Errors: InvalidArgument "messages…: …", ResourceExhausted for the template's limits, Cancelled.
absl::StatusOr<TrainedText> RenderTrained(const Document& document, const text::ModelChatTemplate& chat,
                                          absl::string_view eos, const std::function<bool()>& cancelled);

// Returns for each of `ids` (`encode`'s tokens of the whole text) whether it lies in a trained span or on the border of
// one.
using EncodeFn = absl::FunctionRef<absl::StatusOr<std::vector<int32_t>>(absl::string_view)>;
absl::StatusOr<std::vector<uint8_t>> MarkTrained(const TrainedText& text, absl::Span<const int32_t> ids,
                                                 EncodeFn encode);

}  // namespace switchyard::server
