#include "server/text/tokenizer/stages/normalizer.h"

#include <utility>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/models/byte_level.h"
#include "server/text/tokenizer/pattern.h"
#include "server/text/tokenizer/stages/component.h"
#include "server/text/unicode/unicode.h"

namespace switchyard::tokenizer {
namespace {

// Keeps the characters for which `keep` is true; records whether the first one was dropped.
template <class Keep>
void Filter(NormalizedText* text, Keep keep) {
  std::string out;
  out.reserve(text->text.size());
  for (size_t pos = 0; pos < text->text.size();) {
    const size_t begin = pos;
    const char32_t c = DecodeUtf8(text->text, &pos);
    if (keep(c)) {
      out.append(text->text, begin, pos - begin);
    } else if (begin == 0) {
      text->starts_at_origin = false;
    }
  }
  text->text = std::move(out);
}

// Replaces each character by what `append` appends for it.
template <class Append>
void RewriteCharacters(NormalizedText* text, Append append) {
  std::string out;
  out.reserve(text->text.size());
  for (size_t pos = 0; pos < text->text.size();) append(DecodeUtf8(text->text, &pos), &out);
  text->text = std::move(out);
}

template <text::NormalForm kForm>
void ToNormalForm(NormalizedText* text) {
  text->text = text::Normalize(kForm, text->text);
}

void Lowercase(NormalizedText* text) { RewriteCharacters(text, text::AppendLowercase); }

void StripAccents(NormalizedText* text) {
  Filter(text, [](char32_t c) { return !text::IsMark(c); });
}

void ToByteLevel(NormalizedText* text) {
  std::string out;
  AppendByteLevel(text->text, &out);
  text->text = std::move(out);
}

// NMT's cleaning: removes some control characters; all kinds of spaces and zero-width characters become a space.
void Nmt(NormalizedText* text) {
  Filter(text, [](char32_t c) {
    return !((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
  });
  RewriteCharacters(text, [](char32_t c, std::string* out) {
    const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                       c == 0xFFFD;
    AppendUtf8(space ? U' ' : c, out);
  });
}

// A normalizer without parameters that cannot fail.
template <void (*kApply)(NormalizedText*)>
absl::StatusOr<Normalizer> ReadPlainNormalizer(const Field&, int) {
  return [](NormalizedText* text) {
    kApply(text);
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer> ReadPrepend(const Field& field, int) {
  ASSIGN_OR_RETURN(std::string prefix, field["prepend"].String());
  return [prefix = std::move(prefix)](NormalizedText* text) {
    if (!text->text.empty()) text->text.insert(0, prefix);
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer> ReadReplaceNormalizer(const Field& field, int) {
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse(field["pattern"]));
  ASSIGN_OR_RETURN(std::string content, field["content"].String());
  return [pattern = std::move(pattern), content = std::move(content)](NormalizedText* text) {
    if (content.empty() && text->starts_at_origin) {
      RETURN_IF_ERROR(pattern.ForEachMatch(text->text, [&](Match match) {
        if (match.begin == 0 && match.end > 0) text->starts_at_origin = false;
        return absl::OkStatus();
      }));
    }
    ASSIGN_OR_RETURN(text->text, pattern.ReplaceAll(text->text, content));
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer> ReadStripNormalizer(const Field& field, int) {
  ASSIGN_OR_RETURN(const bool left, field["strip_left"].BoolOr(true));
  ASSIGN_OR_RETURN(const bool right, field["strip_right"].BoolOr(true));
  return [left, right](NormalizedText* text) {
    const absl::string_view all = text->text;
    size_t begin = 0;
    size_t end = all.size();
    for (size_t pos = 0; left && pos < end; begin = pos) {
      if (!text::IsWhitespace(DecodeUtf8(all, &pos))) break;
    }
    for (size_t start = 0; right && end > begin; end = start) {
      if (!text::IsWhitespace(DecodeUtf8Before(all, end, &start))) break;
    }
    if (begin > 0) text->starts_at_origin = false;
    text->text = text->text.substr(begin, end - begin);
    return absl::OkStatus();
  };
}

bool IsCjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void CleanForBert(NormalizedText* text) {
  Filter(text, [](char32_t c) {
    const bool kept_control = c == '\t' || c == '\n' || c == '\r';
    return c != 0 && c != 0xFFFD && (kept_control || !text::IsControlOrUnassigned(c));
  });
  RewriteCharacters(text, [](char32_t c, std::string* out) { AppendUtf8(text::IsWhitespace(c) ? U' ' : c, out); });
}

void SpaceOutCjk(NormalizedText* text) {
  RewriteCharacters(text, [](char32_t c, std::string* out) {
    if (IsCjk(c)) out->push_back(' ');
    AppendUtf8(c, out);
    if (IsCjk(c)) out->push_back(' ');
  });
}

absl::StatusOr<Normalizer> ReadBertNormalizer(const Field& field, int) {
  ASSIGN_OR_RETURN(const bool clean_text, field["clean_text"].BoolOr(true));
  ASSIGN_OR_RETURN(const bool handle_chinese_chars, field["handle_chinese_chars"].BoolOr(true));
  ASSIGN_OR_RETURN(const bool lowercase, field["lowercase"].BoolOr(true));
  ASSIGN_OR_RETURN(const bool strip_accents, field["strip_accents"].BoolOr(lowercase));
  return [=](NormalizedText* text) {
    if (clean_text) CleanForBert(text);
    if (handle_chinese_chars) SpaceOutCjk(text);
    if (strip_accents) {
      ToNormalForm<text::NormalForm::kNfd>(text);
      Filter(text, [](char32_t c) { return !text::IsNonspacingMark(c); });
    }
    if (lowercase) Lowercase(text);
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer> ReadNormalizer(const Field& field, int depth);

absl::StatusOr<Normalizer> ReadSequenceNormalizer(const Field& field, int depth) {
  ASSIGN_OR_RETURN(std::vector<Normalizer> parts, ReadParts(field["normalizers"], depth, ReadNormalizer));
  return [parts = std::move(parts)](NormalizedText* text) {
    for (const Normalizer& part : parts) RETURN_IF_ERROR(part(text));
    return absl::OkStatus();
  };
}

constexpr std::pair<absl::string_view, ComponentReader<Normalizer>> kNormalizers[] = {
    {"NFC", ReadPlainNormalizer<ToNormalForm<text::NormalForm::kNfc>>},
    {"NFD", ReadPlainNormalizer<ToNormalForm<text::NormalForm::kNfd>>},
    {"NFKC", ReadPlainNormalizer<ToNormalForm<text::NormalForm::kNfkc>>},
    {"NFKD", ReadPlainNormalizer<ToNormalForm<text::NormalForm::kNfkd>>},
    {"Lowercase", ReadPlainNormalizer<Lowercase>},
    {"StripAccents", ReadPlainNormalizer<StripAccents>},
    {"ByteLevel", ReadPlainNormalizer<ToByteLevel>},
    {"Nmt", ReadPlainNormalizer<Nmt>},
    {"Replace", ReadReplaceNormalizer},
    {"Strip", ReadStripNormalizer},
    {"BertNormalizer", ReadBertNormalizer},
    {"Prepend", ReadPrepend},
    {"Sequence", ReadSequenceNormalizer},
};

absl::StatusOr<Normalizer> ReadNormalizer(const Field& field, int depth) {
  return ReadComponent(kNormalizers, field, depth);
}

}  // namespace

absl::StatusOr<Normalizer> ParseNormalizer(const Field& field) {
  if (!field.present()) return Normalizer();
  return ReadNormalizer(field, 0);
}

}  // namespace switchyard::tokenizer
