#include "server/jobs/pack/document_encoder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "server/jobs/pack/trained_text.h"
#include "server/text/tokenizer/tokenizer_config.h"

namespace switchyard::server {
namespace {

constexpr char kTokenizerFile[] = "tokenizer.json";
constexpr const char* kEosFiles[] = {"tokenizer_config.json", "special_tokens_map.json"};
constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr size_t kMaxTextBytes = size_t{64} << 20;  // a template may write more than its line

bool BeginsWith(absl::Span<const int32_t> ids, absl::Span<const int32_t> first) {
  return ids.size() >= first.size() && ids.subspan(0, first.size()) == first;
}

// Encodes a completion after its prompt.  In serving, the prompt is tokenized alone, so no token may have characters of
// both.  If the whole text's tokens begin with the prompt's, the rest of them is used; else the completion is encoded
// alone.  Some tokenizers put a space before a text; to avoid that, the completion is encoded after an anchor whose
// tokens are removed.
absl::StatusOr<std::vector<int32_t>> EncodeCompletion(const tokenizer::Tokenizer& tokenizer, const Document& document,
                                                      const std::vector<int32_t>& prompt, EncodeFn encode) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> whole, encode(document.text + document.completion));
  if (BeginsWith(whole, prompt)) return std::vector<int32_t>(whole.begin() + std::ssize(prompt), whole.end());
  ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(whole, /*skip_special_tokens=*/false));
  std::vector<int32_t> own;
  for (const absl::string_view anchor : {"", "\n"}) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> lead, encode(anchor));
    ASSIGN_OR_RETURN(const std::vector<int32_t> led, encode(absl::StrCat(anchor, document.completion)));
    if (!BeginsWith(led, lead)) continue;
    std::vector<int32_t> both = prompt;
    both.insert(both.end(), led.begin() + std::ssize(lead), led.end());
    ASSIGN_OR_RETURN(const std::string joined, tokenizer.Decode(both, /*skip_special_tokens=*/false));
    if (joined == text || anchor.empty()) own.assign(both.begin() + std::ssize(prompt), both.end());
    if (joined == text) break;
  }
  return own;  // if no encoding gives the exact text (a normalizer joins characters)
}

absl::Status AtFolder(const std::string& folder, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(folder, "/", status.message()));
}

}  // namespace

absl::StatusOr<DocumentEncoder> DocumentEncoder::Load(const ModelDir& folder, const std::string& name) {
  const absl::StatusOr<std::string> json = folder.ReadSmallFile(kTokenizerFile, tokenizer::kMaxTokenizerBytes);
  if (absl::IsNotFound(json.status())) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": has no ", kTokenizerFile, " to make tokens with"));
  }
  if (!json.ok()) return AtFolder(name, json.status());
  ASSIGN_OR_RETURN(std::unique_ptr<const tokenizer::Tokenizer> tokenizer,
                   tokenizer::Tokenizer::FromJson(*json, absl::StrCat(name, "/", kTokenizerFile)));
  absl::StatusOr<text::ModelChatTemplate> chat = text::ModelChatTemplate::Load(folder, name);
  if (!chat.ok() && !absl::IsNotFound(chat.status())) return chat.status();
  auto own_chat = chat.ok() ? std::make_unique<const text::ModelChatTemplate>(*std::move(chat)) : nullptr;
  ASSIGN_OR_RETURN(DocumentEncoder encoder, Borrow(folder, name, tokenizer.get(), own_chat.get()));
  encoder.own_tokenizer_ = std::move(tokenizer);
  encoder.own_chat_ = std::move(own_chat);
  return encoder;
}

absl::StatusOr<DocumentEncoder> DocumentEncoder::Borrow(const ModelDir& folder, const std::string& name,
                                                        const tokenizer::Tokenizer* tokenizer,
                                                        const text::ModelChatTemplate* chat) {
  DocumentEncoder encoder;
  encoder.tokenizer_ = tokenizer;
  encoder.chat_ = chat;
  RETURN_IF_ERROR(encoder.FindEos(folder, name));
  return encoder;
}

absl::Status DocumentEncoder::FindEos(const ModelDir& folder, const std::string& name) {
  for (const char* file : kEosFiles) {
    const absl::StatusOr<std::string> json = folder.ReadSmallFile(file, kMaxConfigBytes);
    if (absl::IsNotFound(json.status())) continue;
    if (!json.ok()) return AtFolder(name, json.status());
    ASSIGN_OR_RETURN(std::optional<std::string> eos, tokenizer::ReadEosToken(*json, absl::StrCat(name, "/", file)));
    if (!eos.has_value()) continue;
    eos_text_ = *std::move(eos);
    eos_ = tokenizer_->TokenToId(eos_text_);
    if (eos_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, "/", file, ": eos_token ", Quote(eos_text_), " is no token of ", kTokenizerFile));
  }
  return absl::FailedPreconditionError(absl::StrCat(name, ": neither ", kEosFiles[0], " nor ", kEosFiles[1],
                                                    " has an eos_token, and a document must end with one"));
}

absl::Status DocumentEncoder::Append(const Document& document, const std::function<bool()>& cancelled,
                                     PackedTokens* out) const {
  if (document.kind != DocumentKind::kPair) return AppendOne(document, cancelled, out);
  const char* key = "chosen";
  for (const Document& each : document.pair) {
    const auto first = std::ssize(out->trained);
    const absl::Status appended = AppendOne(each, cancelled, out);
    if (!appended.ok()) return absl::Status(appended.code(), absl::StrCat(key, ": ", appended.message()));
    // (The first token of a document is nobody's target.)
    if (std::find(out->trained.begin() + std::min(first + 1, std::ssize(out->trained)), out->trained.end(), 1) ==
        out->trained.end()) {
      return absl::InvalidArgumentError(absl::StrCat(key, ": no token of its answer would be trained"));
    }
    key = "rejected";
  }
  return absl::OkStatus();
}

absl::Status DocumentEncoder::AppendOne(const Document& document, const std::function<bool()>& cancelled,
                                        PackedTokens* out) const {
  out->begins.push_back(static_cast<int64_t>(out->ids.size()));
  return document.kind == DocumentKind::kMessages ? AppendMessages(document, cancelled, out)
                                                  : AppendText(document, cancelled, out);
}

absl::Status DocumentEncoder::AppendText(const Document& document, const std::function<bool()>& cancelled,
                                         PackedTokens* out) const {
  const auto encode = [&](absl::string_view text) {
    return tokenizer_->Encode(
        text,
        {.add_special_tokens = false, .allow_special = false, .max_text_bytes = kMaxTextBytes, .cancelled = cancelled});
  };
  const bool completion = document.kind == DocumentKind::kCompletion;
  std::vector<int32_t> ids, answer;
  ASSIGN_OR_RETURN(ids, encode(document.text));
  if (completion) {
    ASSIGN_OR_RETURN(answer, EncodeCompletion(*tokenizer_, document, ids, encode));
  }
  const std::vector<int32_t>&before = tokenizer_->ids_before(), &after = tokenizer_->ids_after();
  out->ids.insert(out->ids.end(), before.begin(), before.end());
  out->ids.insert(out->ids.end(), ids.begin(), ids.end());
  out->trained.resize(out->ids.size(), completion ? 0 : 1);
  out->ids.insert(out->ids.end(), answer.begin(), answer.end());
  out->ids.insert(out->ids.end(), after.begin(), after.end());
  if (after.empty() || after.back() != eos_) out->ids.push_back(eos_);
  out->trained.resize(out->ids.size(), 1);
  return absl::OkStatus();
}

absl::Status DocumentEncoder::AppendMessages(const Document& document, const std::function<bool()>& cancelled,
                                             PackedTokens* out) const {
  if (chat_ == nullptr) {
    return absl::FailedPreconditionError("messages: the tokenizer's folder has no chat template to render them with");
  }
  const auto encode = [&](absl::string_view text) {
    return tokenizer_->Encode(
        text,
        {.add_special_tokens = false, .allow_special = true, .max_text_bytes = kMaxTextBytes, .cancelled = cancelled});
  };
  ASSIGN_OR_RETURN(const TrainedText chat, RenderTrained(document, *chat_, eos_text_, cancelled));
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, encode(chat.text));
  ASSIGN_OR_RETURN(const std::vector<uint8_t> trained, MarkTrained(chat, ids, encode));
  out->ids.insert(out->ids.end(), ids.begin(), ids.end());
  out->trained.insert(out->trained.end(), trained.begin(), trained.end());
  if (absl::EndsWith(absl::StripTrailingAsciiWhitespace(chat.text), eos_text_)) return absl::OkStatus();
  out->ids.push_back(eos_);
  out->trained.push_back(document.messages.back()["role"] == "assistant" ? 1 : 0);
  return absl::OkStatus();
}

}  // namespace switchyard::server
