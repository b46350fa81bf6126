// Which bytes of a conversation's text are trained, and which tokens these are.
//
// `{% generation %}` blocks of the template decide.  Without them, what the assistant wrote is what rendering up to and
// with its message adds to rendering up to there with a generation prompt: the header of its turn is not trained, the
// EOS that ends the turn is, white space behind that EOS is not.  A template that renders a beginning otherwise within
// the whole (some leave out earlier reasoning) is an error; nothing is guessed.
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

// REQUIRES: a document of kMessages.  `eos` is the token's text.  Templates that print a date see 1 January 1970.
// Errors: InvalidArgument "messages…: …", ResourceExhausted for the template's limits, Cancelled.
absl::StatusOr<TrainedText> RenderTrained(const Document& document, const text::ModelChatTemplate& chat,
                                          absl::string_view eos, const std::function<bool()>& cancelled);

// trained[i]: whether ids[i], `encode`'s tokens of the whole text, lies in a trained span or on the border of one.
using EncodeFn = absl::FunctionRef<absl::StatusOr<std::vector<int32_t>>(absl::string_view)>;
absl::StatusOr<std::vector<uint8_t>> MarkTrained(const TrainedText& text, absl::Span<const int32_t> ids,
                                                 EncodeFn encode);

}  // namespace switchyard::server
