#include "server/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/unicode/unicode.h"

namespace switchyard::tokenizer {
namespace {

constexpr size_t kMaxContentBytes = 4096;

bool WordBefore(absl::string_view text, size_t pos) {
  size_t begin = 0;
  return pos > 0 && text::IsWord(DecodeUtf8Before(text, pos, &begin));
}

bool WordAt(absl::string_view text, size_t pos) { return pos < text.size() && text::IsWord(DecodeUtf8(text, &pos)); }

}  // namespace

void LongestMatcher::Add(std::string text, int32_t value) { entries_.push_back({std::move(text), value}); }

void LongestMatcher::Build() {
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  const auto same = [](const Entry& a, const Entry& b) { return a.text == b.text; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  for (const Entry& entry : entries_) ++first_byte_[static_cast<unsigned char>(entry.text[0]) + 1];
  for (size_t byte = 0; byte < 256; ++byte) first_byte_[byte + 1] += first_byte_[byte];
}

int32_t LongestMatcher::Find(absl::string_view text, size_t pos, size_t* length) const {
  const auto first = static_cast<unsigned char>(text[pos]);
  auto low = entries_.begin() + first_byte_[first];
  auto high = entries_.begin() + first_byte_[first + 1];
  int32_t found = -1;
  // [low, high) are the entries that match the text so far; an entry that ends here sorts first among them.
  for (size_t depth = 1; low != high; ++depth) {
    if (low->text.size() == depth) {
      found = low->value;
      *length = depth;
      ++low;
    }
    if (pos + depth >= text.size()) break;
    const auto byte = static_cast<unsigned char>(text[pos + depth]);
    const auto at = [depth](const Entry& entry) { return static_cast<unsigned char>(entry.text[depth]); };
    low = std::partition_point(low, high, [&](const Entry& entry) { return at(entry) < byte; });
    high = std::partition_point(low, high, [&](const Entry& entry) { return at(entry) == byte; });
  }
  return found;
}

absl::StatusOr<AddedTokens> AddedTokens::Parse(const Field& list, const Vocabulary& model_vocabulary,
                                               const Normalizer& normalizer) {
  AddedTokens added;
  added.next_id_ = static_cast<int32_t>(model_vocabulary.size());
  if (!list.present()) return added;
  RETURN_IF_ERROR(list.CheckArray());
  for (size_t i = 0; i < list.size(); ++i) RETURN_IF_ERROR(added.Add(list.at(i), model_vocabulary));
  RETURN_IF_ERROR(added.BuildMatchers(list, normalizer));
  return added;
}

absl::Status AddedTokens::Add(const Field& field, const Vocabulary& model_vocabulary) {
  RETURN_IF_ERROR(field.CheckObject());
  AddedToken token;
  ASSIGN_OR_RETURN(token.content, field["content"].String());
  ASSIGN_OR_RETURN(const int64_t declared_id, field["id"].Int(0, kMaxTokenId));
  ASSIGN_OR_RETURN(token.single_word, field["single_word"].BoolOr(false));
  ASSIGN_OR_RETURN(token.lstrip, field["lstrip"].BoolOr(false));
  ASSIGN_OR_RETURN(token.rstrip, field["rstrip"].BoolOr(false));
  ASSIGN_OR_RETURN(token.special, field["special"].BoolOr(false));
  ASSIGN_OR_RETURN(token.normalized, field["normalized"].BoolOr(!token.special));
  if (token.content.empty()) return absl::OkStatus();  // ignored, as by HuggingFace; it gets no id
  if (token.content.size() > kMaxContentBytes) {
    return field["content"].Error(
        absl::StrCat("expected at most ", kMaxContentBytes, " bytes, found ", token.content.size()));
  }
  if (const auto same = by_content_.find(token.content); same != by_content_.end()) {
    // As in HuggingFace, equal contents are one token, which keeps its id and stays special; the last entry sets the
    // rest.
    AddedToken& known = tokens_[same->second];
    token.id = known.id;
    token.special |= known.special;
    known = std::move(token);
    return absl::OkStatus();
  }
  token.id = model_vocabulary.IdOf(token.content);
  if (token.id < 0) {
    token.id = next_id_++;
    if (!model_vocabulary.TokenOf(token.id).empty()) {
      return field["id"].Error(absl::StrCat("the next free id is ", token.id,
                                            " (HuggingFace counts the vocabulary's entries), which is ",
                                            Quote(model_vocabulary.TokenOf(token.id))));
    }
  } else {
    next_id_ = std::max(next_id_, token.id + 1);
  }
  if (token.id != declared_id &&
      !std::exchange(warned_, true)) {  // only the first one is logged, since the others mostly follow from it
    LogWarn(field["id"]
                .Error(absl::StrCat("declared ", declared_id, " for ", Quote(token.content), ", used ", token.id))
                .message());
  }
  by_id_[token.id] = tokens_.size();
  by_content_[token.content] = tokens_.size();
  tokens_.push_back(std::move(token));
  return absl::OkStatus();
}

absl::Status AddedTokens::BuildMatchers(const Field& list, const Normalizer& normalizer) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    AddedToken& token = tokens_[i];
    NormalizedText content{token.content, true};
    if (token.normalized && normalizer) {
      const absl::Status status = normalizer(&content);
      if (!status.ok()) return list.Error(absl::StrCat(Quote(token.content), ": ", status.message()));
    }
    token.spelling = content.text;
    // A token that its normalizer makes empty never matches.
    if (!content.text.empty()) (token.normalized ? normalized_ : raw_).Add(content.text, static_cast<int32_t>(i));
  }
  // As in HuggingFace, which compares spellings with contents, a special token that its normalizer changes is not
  // skipped.
  for (AddedToken& token : tokens_) {
    const auto same = by_content_.find(token.spelling);
    token.skippable = same != by_content_.end() && tokens_[same->second].special;
  }
  raw_.Build();
  normalized_.Build();
  return absl::OkStatus();
}

absl::Status AddedTokens::Split(absl::string_view text, bool normalized, bool allow_special, WorkGuard* guard,
                                std::vector<Part>* parts) const {
  const LongestMatcher& matcher = normalized ? normalized_ : raw_;
  size_t done = 0;
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0;
    const int32_t index = matcher.Find(text, pos, &length);
    if (index < 0) {
      ++pos;
      continue;
    }
    RETURN_IF_ERROR(guard->Step());
    const AddedToken& token = tokens_[index];
    size_t begin = pos;
    size_t end = pos + length;
    pos = end;
    if (token.special && !allow_special) continue;
    if (token.single_word && (WordBefore(text, begin) || WordAt(text, end))) continue;
    for (size_t start = begin; token.lstrip && start > done;) {
      if (!text::IsWhitespace(DecodeUtf8Before(text, start, &start))) break;
      begin = start;
    }
    for (size_t next = end; token.rstrip && next < text.size();) {
      if (!text::IsWhitespace(DecodeUtf8(text, &next))) break;
      end = next;
    }
    if (done < begin) parts->push_back({-1, done, begin});
    parts->push_back({token.id, begin, end});
    done = end;
  }
  if (done < text.size()) parts->push_back({-1, done, text.size()});
  return absl::OkStatus();
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

int32_t AddedTokens::IdOf(absl::string_view content) const {
  const auto found = by_content_.find(std::string(content.data(), content.size()));
  return found == by_content_.end() ? -1 : tokens_[found->second].id;
}

bool AddedTokens::IsSkippable(int32_t id) const {
  const AddedToken* token = Find(id);
  return token != nullptr && token->skippable;
}

}  // namespace switchyard::tokenizer
