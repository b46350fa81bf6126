#include "server/text/tokenizer/stages/normalizer.h"

#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/component_limits.h"
#include "server/text/tokenizer/models/byte_level.h"
#include "server/text/tokenizer/pattern.h"
#include "server/text/unicode/normal_form.h"
#include "server/text/unicode/unicode.h"

namespace switchyard::tokenizer {
namespace {

using NormalizerPtr = std::unique_ptr<Normalizer>;

// Keeps the characters for which `keep` is true; knows whether the first one was dropped.
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

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(text::NormalForm form) : form_(form) {}
  absl::Status Apply(NormalizedText* text) const override {
    text->text = text::Normalize(form_, text->text);
    return absl::OkStatus();
  }

 private:
  const text::NormalForm form_;
};

// Those that need no parameters and cannot fail.
class SimpleNormalizer : public Normalizer {
 public:
  using Function = void (*)(NormalizedText*);
  explicit SimpleNormalizer(Function function) : function_(function) {}
  absl::Status Apply(NormalizedText* text) const override {
    function_(text);
    return absl::OkStatus();
  }

 private:
  const Function function_;
};

void Lowercase(NormalizedText* text) {
  std::string out;
  out.reserve(text->text.size());
  for (size_t pos = 0; pos < text->text.size();) text::AppendLowercase(DecodeUtf8(text->text, &pos), &out);
  text->text = std::move(out);
}

void StripAccents(NormalizedText* text) {
  Filter(text, [](char32_t c) { return !text::IsMark(c); });
}

void ToByteLevel(NormalizedText* text) {
  std::string out;
  AppendByteLevel(text->text, &out);
  text->text = std::move(out);
}

// NMT's cleaning: some control characters go, spaces of all kinds and zero-width characters become a space.
void Nmt(NormalizedText* text) {
  Filter(text, [](char32_t c) {
    return !((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
  });
  std::string out;
  for (size_t pos = 0; pos < text->text.size();) {
    const char32_t c = DecodeUtf8(text->text, &pos);
    const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                       c == 0xFFFD;
    AppendUtf8(space ? U' ' : c, &out);
  }
  text->text = std::move(out);
}

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(NormalizedText* text) const override {
    if (!text->text.empty()) text->text.insert(0, prefix_);
    return absl::OkStatus();
  }

 private:
  const std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Apply(NormalizedText* text) const override {
    if (content_.empty() && text->starts_at_origin) {
      RETURN_IF_ERROR(pattern_.ForEachMatch(text->text, [&](Match match) {
        if (match.begin == 0 && match.end > 0) text->starts_at_origin = false;
        return absl::OkStatus();
      }));
    }
    ASSIGN_OR_RETURN(text->text, pattern_.ReplaceAll(text->text, content_));
    return absl::OkStatus();
  }

 private:
  const Pattern pattern_;
  const std::string content_;
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(NormalizedText* text) const override {
    const absl::string_view all = text->text;
    size_t begin = 0;
    size_t end = all.size();
    for (size_t pos = 0; left_ && pos < end; begin = pos) {
      if (!text::IsWhitespace(DecodeUtf8(all, &pos))) break;
    }
    for (size_t start = 0; right_ && end > begin; end = start) {
      if (!text::IsWhitespace(DecodeUtf8Before(all, end, &start))) break;
    }
    if (begin > 0) text->starts_at_origin = false;
    text->text = text->text.substr(begin, end - begin);
    return absl::OkStatus();
  }

 private:
  const bool left_;
  const bool right_;
};

bool IsCjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class BertNormalizer : public Normalizer {
 public:
  struct Options {
    bool clean_text;
    bool handle_chinese_chars;
    bool strip_accents;
    bool lowercase;
  };
  explicit BertNormalizer(Options options) : options_(options) {}

  absl::Status Apply(NormalizedText* text) const override {
    if (options_.clean_text) Clean(text);
    if (options_.handle_chinese_chars) SpaceOutCjk(text);
    if (options_.strip_accents) {
      text->text = text::Normalize(text::NormalForm::kNfd, text->text);
      Filter(text, [](char32_t c) { return !text::IsNonspacingMark(c); });
    }
    if (options_.lowercase) Lowercase(text);
    return absl::OkStatus();
  }

 private:
  static void Clean(NormalizedText* text) {
    Filter(text, [](char32_t c) {
      const bool kept_control = c == '\t' || c == '\n' || c == '\r';
      return c != 0 && c != 0xFFFD && (kept_control || !text::IsControlOrUnassigned(c));
    });
    std::string out;
    for (size_t pos = 0; pos < text->text.size();) {
      const char32_t c = DecodeUtf8(text->text, &pos);
      AppendUtf8(text::IsWhitespace(c) ? U' ' : c, &out);
    }
    text->text = std::move(out);
  }

  static void SpaceOutCjk(NormalizedText* text) {
    std::string out;
    for (size_t pos = 0; pos < text->text.size();) {
      const char32_t c = DecodeUtf8(text->text, &pos);
      if (IsCjk(c)) out.push_back(' ');
      AppendUtf8(c, &out);
      if (IsCjk(c)) out.push_back(' ');
    }
    text->text = std::move(out);
  }

  const Options options_;
};

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<NormalizerPtr> parts) : parts_(std::move(parts)) {}
  absl::Status Apply(NormalizedText* text) const override {
    for (const NormalizerPtr& part : parts_) RETURN_IF_ERROR(part->Apply(text));
    return absl::OkStatus();
  }

 private:
  const std::vector<NormalizerPtr> parts_;
};

absl::StatusOr<NormalizerPtr> ParseReplace(const Field& field) {
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse(field["pattern"]));
  ASSIGN_OR_RETURN(std::string content, field["content"].String());
  return std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content));
}

absl::StatusOr<NormalizerPtr> ParseStrip(const Field& field) {
  ASSIGN_OR_RETURN(const bool left, field["strip_left"].BoolOr(true));
  ASSIGN_OR_RETURN(const bool right, field["strip_right"].BoolOr(true));
  return std::make_unique<StripNormalizer>(left, right);
}

absl::StatusOr<NormalizerPtr> ParseBert(const Field& field) {
  BertNormalizer::Options options;
  ASSIGN_OR_RETURN(options.clean_text, field["clean_text"].BoolOr(true));
  ASSIGN_OR_RETURN(options.handle_chinese_chars, field["handle_chinese_chars"].BoolOr(true));
  ASSIGN_OR_RETURN(options.lowercase, field["lowercase"].BoolOr(true));
  ASSIGN_OR_RETURN(options.strip_accents, field["strip_accents"].BoolOr(options.lowercase));
  return std::make_unique<BertNormalizer>(options);
}

absl::StatusOr<NormalizerPtr> Parse(const Field& field, int depth);

absl::StatusOr<NormalizerPtr> ParseSequence(const Field& field, int depth) {
  const Field list = field["normalizers"];
  RETURN_IF_ERROR(CheckSequence(list));
  std::vector<NormalizerPtr> parts;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(NormalizerPtr part, Parse(list.at(i), depth + 1));
    parts.push_back(std::move(part));
  }
  return std::make_unique<SequenceNormalizer>(std::move(parts));
}

absl::StatusOr<NormalizerPtr> Parse(const Field& field, int depth) {
  RETURN_IF_ERROR(CheckComponent(field, depth));
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  if (type == "NFC") return std::make_unique<FormNormalizer>(text::NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<FormNormalizer>(text::NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<FormNormalizer>(text::NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<FormNormalizer>(text::NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<SimpleNormalizer>(Lowercase);
  if (type == "StripAccents") return std::make_unique<SimpleNormalizer>(StripAccents);
  if (type == "ByteLevel") return std::make_unique<SimpleNormalizer>(ToByteLevel);
  if (type == "Nmt") return std::make_unique<SimpleNormalizer>(Nmt);
  if (type == "Replace") return ParseReplace(field);
  if (type == "Strip") return ParseStrip(field);
  if (type == "BertNormalizer") return ParseBert(field);
  if (type == "Sequence") return ParseSequence(field, depth);
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prefix, field["prepend"].String());
    return std::make_unique<PrependNormalizer>(std::move(prefix));
  }
  return field["type"].Expected(
      "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, ByteLevel, Nmt, Replace, Strip, BertNormalizer, Prepend or "
      "Sequence");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const Field& field) {
  if (!field.present()) return NormalizerPtr();
  return Parse(field, 0);
}

}  // namespace switchyard::tokenizer
