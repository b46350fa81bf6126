#include "server/jobs/pack/trained_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

absl::Status Differs(size_t message) {
  return absl::InvalidArgumentError(absl::StrCat(
      "messages[", message,
      "]: the chat template renders the conversation's beginning otherwise within the whole, so "
      "what is trained cannot be told; mark it in the template with {% generation %}, or give the turns in lines of "
      "their own"));
}

// Renders the first messages of a document, as if there were no more.
class Beginnings {
 public:
  Beginnings(const Document& document, const text::ModelChatTemplate& chat, const std::function<bool()>& cancelled)
      : document_(document), chat_(chat), cancelled_(cancelled) {}

  absl::StatusOr<text::RenderedChat> Render(size_t num_messages, bool add_generation_prompt) const {
    text::ChatRequest request;
    const auto& all = document_.messages;
    request.messages = nlohmann::ordered_json::array();
    for (size_t i = 0; i < num_messages; ++i) request.messages.push_back(all[i]);
    request.tools = document_.tools;
    request.add_generation_prompt = add_generation_prompt;
    absl::StatusOr<text::RenderedChat> chat =
        chat_.RenderChat(request, {absl::UnixEpoch(), absl::UTCTimeZone(), [this] { return MustEnd(); }});
    if (chat.ok()) return chat;
    const std::string which = num_messages == all.size() ? "" : absl::StrCat(" (the first ", num_messages, ")");
    return absl::Status(chat.status().code(), absl::StrCat("messages", which, ": ", chat.status().message()));
  }

 private:
  absl::Status MustEnd() const {
    return cancelled_ && cancelled_() ? absl::CancelledError("no longer wanted") : absl::OkStatus();
  }

  const Document& document_;
  const text::ModelChatTemplate& chat_;
  const std::function<bool()>& cancelled_;
};

// Returns the end of the EOS that ends a turn; the end of the turn if there is none.
size_t TurnEnd(absl::string_view turn, absl::string_view eos) {
  const absl::string_view stripped = absl::StripTrailingAsciiWhitespace(turn);
  return !eos.empty() && absl::EndsWith(stripped, eos) ? stripped.size() : turn.size();
}

size_t CommonPrefix(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}

// Finds which token begins at a byte, for bytes that rise.
class TokenFinder {
 public:
  TokenFinder(absl::string_view text, absl::Span<const int32_t> ids, EncodeFn encode)
      : text_(text), ids_(ids), encode_(encode) {}

  struct Place {
    size_t token;
    bool cut;  // the byte lies within this token
  };
  absl::StatusOr<Place> Find(size_t byte) {
    // Only the text since the last border between tokens is encoded: linear if parts of the text have the same tokens
    // as the whole.
    ASSIGN_OR_RETURN(const std::vector<int32_t> part, encode_(text_.substr(byte_, byte - byte_)));
    const absl::Span<const int32_t> rest = ids_.subspan(token_);
    if (CommonPrefix(part, rest) == part.size()) {
      byte_ = byte;
      token_ += part.size();
      return Place{token_, false};
    }
    ASSIGN_OR_RETURN(const std::vector<int32_t> all, encode_(text_.substr(0, byte)));
    const size_t same = CommonPrefix(all, ids_);
    if (same < all.size()) return Place{std::min(same, ids_.size()), true};
    byte_ = byte;
    token_ = same;
    return Place{same, false};
  }

 private:
  const absl::string_view text_;
  const absl::Span<const int32_t> ids_;
  const EncodeFn encode_;
  size_t byte_ = 0, token_ = 0;  // token_ begins at byte_
};

}  // namespace

absl::StatusOr<TrainedText> RenderTrained(const Document& document, const text::ModelChatTemplate& chat,
                                          absl::string_view eos, const std::function<bool()>& cancelled) {
  const Beginnings beginnings(document, chat, cancelled);
  const size_t num_messages = document.messages.size();
  ASSIGN_OR_RETURN(text::RenderedChat whole, beginnings.Render(num_messages, /*add_generation_prompt=*/false));
  TrainedText out = {std::move(whole.text), std::move(whole.generated)};
  if (!out.trained.empty()) {
    size_t prompt_end = 0;
    if (document.prompt_messages > 0) {
      ASSIGN_OR_RETURN(const text::RenderedChat prompt, beginnings.Render(document.prompt_messages, true));
      if (!absl::StartsWith(out.text, prompt.text)) return Differs(document.prompt_messages - 1);
      prompt_end = prompt.text.size();
    }
    std::erase_if(out.trained, [prompt_end](const text::TextSpan& span) {
      return span.begin == span.end || span.begin < prompt_end;
    });
    return out;
  }
  for (size_t i = document.prompt_messages; i < num_messages; ++i) {
    if (document.messages[i]["role"] != "assistant") continue;
    if (cancelled && cancelled()) return absl::CancelledError("no longer wanted");
    ASSIGN_OR_RETURN(const text::RenderedChat before, beginnings.Render(i, /*add_generation_prompt=*/true));
    ASSIGN_OR_RETURN(const text::RenderedChat with, beginnings.Render(i + 1, /*add_generation_prompt=*/false));
    if (!absl::StartsWith(out.text, with.text) || !absl::StartsWith(with.text, before.text)) return Differs(i);
    const size_t begin = before.text.size();
    const size_t end = begin + TurnEnd(absl::string_view(with.text).substr(begin), eos);
    if (begin < end) out.trained.push_back({begin, end});
  }
  return out;
}

absl::StatusOr<std::vector<uint8_t>> MarkTrained(const TrainedText& text, absl::Span<const int32_t> ids,
                                                 EncodeFn encode) {
  std::vector<uint8_t> trained(ids.size(), 0);
  TokenFinder finder(text.text, ids, encode);
  for (const text::TextSpan& span : text.trained) {
    ASSIGN_OR_RETURN(const TokenFinder::Place begin, finder.Find(span.begin));
    ASSIGN_OR_RETURN(const TokenFinder::Place end, finder.Find(span.end));
    const size_t past = std::min(ids.size(), end.token + (end.cut ? 1 : 0));
    for (size_t i = begin.token; i < past; ++i) trained[i] = 1;
  }
  return trained;
}

}  // namespace switchyard::server
