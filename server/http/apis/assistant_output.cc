#include "server/http/apis/assistant_output.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard::server {

AssistantOutput::AssistantOutput(const text::OutputFormat& format, text::OutputOptions options, std::string call_prefix)
    : call_prefix_(std::move(call_prefix)), may_reason_(format.reasoning != nullptr || format.channels()) {
  if (format.tools != nullptr || format.reasoning != nullptr)
    parser_ = std::make_unique<text::OutputParser>(format, std::move(options));
}

void AssistantOutput::CountReasoning(const tokenizer::Tokenizer* tokenizer, bool skip_special_tokens) {
  if (tokenizer == nullptr || !may_reason_) return;
  tokenizer_ = tokenizer;
  skip_special_tokens_ = skip_special_tokens;
  decoder_.emplace(tokenizer, skip_special_tokens);
}

// Decodes as the engine did, as messages do not say which text is of which token.  A token that is not shown has no
// place; one that only continues a character has the place of the next text.
void AssistantOutput::PlaceTokens(const v1::GenerateResponse& message) {
  for (const int32_t id : message.token_ids()) {
    if (!decoder_.has_value()) return;
    const bool is_shown = !tokenizer_->IdToToken(id).empty() && !(skip_special_tokens_ && tokenizer_->IsSkippable(id));
    if (is_shown) parser_->AddToken(place_);
    std::string text;
    if (!decoder_->Append(id, &text).ok()) decoder_.reset();  // the text ends here, too
    place_ += text.size();
  }
}

void AssistantOutput::Add(const v1::GenerateResponse& message, const Events& events) {
  if (parser_ == nullptr) {
    Append(OutputPart::Kind::kText, message.text(), events);
  } else {
    std::vector<text::OutputEvent> list;
    place_ += forced_.size();
    if (!forced_.empty()) parser_->Push(std::exchange(forced_, std::string()), &list);
    PlaceTokens(message);
    parser_->Push(message.text(), &list);
    if (message.has_finish()) parser_->Finish(&list);
    Handle(list, events);
  }
  if (message.has_finish()) EndPart(events);
}

void AssistantOutput::Handle(const std::vector<text::OutputEvent>& list, const Events& events) {
  using Kind = text::OutputEvent::Kind;
  for (const text::OutputEvent& event : list) {
    if (one_call_ && event.index > 0) continue;  // of a further call
    switch (event.kind) {
      case Kind::kContent:
        Append(OutputPart::Kind::kText, event.text, events);
        break;
      case Kind::kReasoning:
        Append(OutputPart::Kind::kReasoning, event.text, events);
        break;
      case Kind::kToolBegin:
        EndPart(events);
        BeginPart({.kind = OutputPart::Kind::kCall,
                   .name = event.text,
                   .id = event.id.empty() ? absl::StrCat(call_prefix_, event.index) : event.id},
                  events);
        break;
      case Kind::kToolArguments:
        Append(OutputPart::Kind::kCall, event.text, events);
        break;
      case Kind::kToolEnd:
        parts_.back().is_whole = event.complete;
        EndPart(events);
        break;
    }
  }
}

void AssistantOutput::BeginPart(OutputPart part, const Events& events) {
  parts_.push_back(std::move(part));
  is_open_ = true;
  if (events.on_begin) events.on_begin(parts_.size() - 1, parts_.back());
}

void AssistantOutput::Append(OutputPart::Kind kind, absl::string_view text, const Events& events) {
  if (text.empty()) return;
  if (!is_open_ || parts_.back().kind != kind) {
    EndPart(events);
    BeginPart({.kind = kind}, events);
  }
  parts_.back().text.append(text.data(), text.size());
  if (events.on_text) events.on_text(parts_.size() - 1, parts_.back(), text);
}

void AssistantOutput::EndPart(const Events& events) {
  if (!std::exchange(is_open_, false)) return;
  if (events.on_end) events.on_end(parts_.size() - 1, parts_.back());
}

bool AssistantOutput::has_calls() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const OutputPart& part) { return part.kind == OutputPart::Kind::kCall && part.is_whole; });
}

std::string AssistantOutput::TextOf(OutputPart::Kind kind) const {
  std::string text;
  for (const OutputPart& part : parts_) {
    if (part.kind == kind) absl::StrAppend(&text, part.text);
  }
  return text;
}

}  // namespace switchyard::server
