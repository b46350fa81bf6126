#include "server/text/tokenizer/stages/pre_tokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/component_limits.h"
#include "server/text/tokenizer/models/byte_level.h"
#include "server/text/tokenizer/pattern.h"
#include "server/text/unicode/unicode.h"

namespace switchyard::tokenizer {
namespace {

using PreTokenizerPtr = std::unique_ptr<PreTokenizer>;

constexpr absl::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Splits on single characters.
template <class Predicate>
absl::Status SplitOnCharacters(SplitBehavior behavior, Predicate predicate, WorkGuard* guard, Pieces* pieces) {
  const auto find = [&](absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) -> absl::Status {
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      if (predicate(DecodeUtf8(text, &pos))) RETURN_IF_ERROR(visit({begin, pos}));
    }
    return absl::OkStatus();
  };
  return SplitPieces(behavior, /*invert=*/false, find, guard, pieces);
}

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::unique_ptr<Regex> regex)
      : add_prefix_space_(add_prefix_space), regex_(std::move(regex)) {}

  absl::Status Apply(WorkGuard* guard, Pieces* pieces) const override {
    if (add_prefix_space_) {
      const auto with_space = [](absl::string_view piece, bool, std::string* out) {
        if (piece[0] != ' ') out->push_back(' ');
        out->append(piece.data(), piece.size());
      };
      RewritePieces(with_space, pieces);
    }
    if (regex_ != nullptr) {
      const auto find = [this](absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) {
        return regex_->ForEachMatch(text, visit);
      };
      RETURN_IF_ERROR(SplitPieces(SplitBehavior::kIsolated, /*invert=*/false, find, guard, pieces));
    }
    RewritePieces([](absl::string_view piece, bool, std::string* out) { AppendByteLevel(piece, out); }, pieces);
    return absl::OkStatus();
  }

 private:
  const bool add_prefix_space_;
  const std::unique_ptr<Regex> regex_;  // null: the whole piece
};

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Apply(WorkGuard* guard, Pieces* pieces) const override {
    const auto find = [this](absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) {
      return pattern_.ForEachMatch(text, visit);
    };
    return SplitPieces(behavior_, invert_, find, guard, pieces);
  }

 private:
  const Pattern pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

enum class PrependScheme { kFirst, kNever, kAlways };

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  MetaspacePreTokenizer(char32_t replacement, PrependScheme scheme, bool split)
      : replacement_(replacement), scheme_(scheme), split_(split) {
    AppendUtf8(replacement, &replacement_utf8_);
  }

  absl::Status Apply(WorkGuard* guard, Pieces* pieces) const override {
    const auto rewrite = [this](absl::string_view piece, bool at_origin, std::string* out) {
      const bool wanted = scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && at_origin);
      if (wanted && piece[0] != ' ' && !absl::StartsWith(piece, replacement_utf8_)) out->append(replacement_utf8_);
      for (const char c : piece) {
        if (c == ' ') {
          out->append(replacement_utf8_);
        } else {
          out->push_back(c);
        }
      }
    };
    RewritePieces(rewrite, pieces);
    if (!split_) return absl::OkStatus();
    const auto is_replacement = [this](char32_t c) { return c == replacement_; };
    return SplitOnCharacters(SplitBehavior::kMergedWithNext, is_replacement, guard, pieces);
  }

 private:
  const char32_t replacement_;
  const PrependScheme scheme_;
  const bool split_;
  std::string replacement_utf8_;
};

// `\w+|[^\w\s]+`: runs of word characters and runs of signs; whitespace goes.
class WhitespacePreTokenizer : public PreTokenizer {
 public:
  absl::Status Apply(WorkGuard* guard, Pieces* pieces) const override {
    RETURN_IF_ERROR(SplitOnCharacters(SplitBehavior::kRemoved, IsSpace, guard, pieces));
    return SplitOnCharacters(SplitBehavior::kContiguous, text::IsWord, guard, pieces);
  }

 private:
  // A character that is both (none is today) would be a word character.
  static bool IsSpace(char32_t c) { return text::IsWhitespace(c) && !text::IsWord(c); }
};

// Splits on a class of characters that is given by a function.
class ClassPreTokenizer : public PreTokenizer {
 public:
  using Predicate = bool (*)(char32_t);
  ClassPreTokenizer(SplitBehavior behavior, Predicate predicate) : behavior_(behavior), predicate_(predicate) {}
  absl::Status Apply(WorkGuard* guard, Pieces* pieces) const override {
    return SplitOnCharacters(behavior_, predicate_, guard, pieces);
  }

 private:
  const SplitBehavior behavior_;
  const Predicate predicate_;
};

class DelimiterPreTokenizer : public PreTokenizer {
 public:
  explicit DelimiterPreTokenizer(char32_t delimiter) : delimiter_(delimiter) {}
  absl::Status Apply(WorkGuard* guard, Pieces* pieces) const override {
    return SplitOnCharacters(
        SplitBehavior::kRemoved, [this](char32_t c) { return c == delimiter_; }, guard, pieces);
  }

 private:
  const char32_t delimiter_;
};

class FixedLengthPreTokenizer : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(int64_t length) : length_(length) {}
  absl::Status Apply(WorkGuard* guard, Pieces* pieces) const override {
    const auto find = [this](absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) -> absl::Status {
      size_t begin = 0;
      int64_t count = 0;
      for (size_t pos = 0; pos < text.size();) {
        pos += Utf8Length(text[pos]);
        if (++count % length_ != 0) continue;
        RETURN_IF_ERROR(visit({begin, pos}));
        begin = pos;
      }
      return absl::OkStatus();
    };
    return SplitPieces(SplitBehavior::kIsolated, /*invert=*/false, find, guard, pieces);
  }

 private:
  const int64_t length_;
};

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<PreTokenizerPtr> parts) : parts_(std::move(parts)) {}
  absl::Status Apply(WorkGuard* guard, Pieces* pieces) const override {
    for (const PreTokenizerPtr& part : parts_) RETURN_IF_ERROR(part->Apply(guard, pieces));
    return absl::OkStatus();
  }

 private:
  const std::vector<PreTokenizerPtr> parts_;
};

absl::StatusOr<char32_t> OneCharacter(const Field& field, absl::string_view fallback) {
  ASSIGN_OR_RETURN(const std::string text, field.StringOr(fallback));
  size_t pos = 0;
  if (text.empty()) return field.Expected("one character");
  const char32_t c = DecodeUtf8(text, &pos);
  if (pos != text.size()) return field.Expected("one character");
  return c;
}

absl::StatusOr<SplitBehavior> ParseBehavior(const Field& field, absl::string_view fallback) {
  ASSIGN_OR_RETURN(const std::string name, field.StringOr(fallback));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return field.Expected("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

absl::StatusOr<PreTokenizerPtr> ParseByteLevel(const Field& field) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, field["add_prefix_space"].BoolOr(true));
  ASSIGN_OR_RETURN(const bool use_regex, field["use_regex"].BoolOr(true));
  std::unique_ptr<Regex> regex;
  if (use_regex) {
    ASSIGN_OR_RETURN(Regex compiled, Regex::Compile(kGpt2Regex));
    regex = std::make_unique<Regex>(std::move(compiled));
  }
  return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, std::move(regex));
}

absl::StatusOr<PreTokenizerPtr> ParseSplit(const Field& field) {
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse(field["pattern"]));
  if (!field["behavior"].present()) return field["behavior"].Expected("a split behavior");
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(field["behavior"], ""));
  ASSIGN_OR_RETURN(const bool invert, field["invert"].BoolOr(false));
  return std::make_unique<SplitPreTokenizer>(std::move(pattern), behavior, invert);
}

absl::StatusOr<PreTokenizerPtr> ParseMetaspace(const Field& field) {
  ASSIGN_OR_RETURN(const char32_t replacement, OneCharacter(field["replacement"], "▁"));
  ASSIGN_OR_RETURN(const bool split, field["split"].BoolOr(true));
  // Files older than prepend_scheme say add_prefix_space.
  ASSIGN_OR_RETURN(const bool add_prefix_space, field["add_prefix_space"].BoolOr(true));
  ASSIGN_OR_RETURN(const std::string name, field["prepend_scheme"].StringOr(add_prefix_space ? "always" : "never"));
  PrependScheme scheme = PrependScheme::kAlways;
  if (name == "first") {
    scheme = PrependScheme::kFirst;
  } else if (name == "never") {
    scheme = PrependScheme::kNever;
  } else if (name != "always") {
    return field["prepend_scheme"].Expected("first, never or always");
  }
  return std::make_unique<MetaspacePreTokenizer>(replacement, scheme, split);
}

absl::StatusOr<PreTokenizerPtr> Parse(const Field& field, int depth);

absl::StatusOr<PreTokenizerPtr> ParseSequence(const Field& field, int depth) {
  const Field list = field["pretokenizers"];
  RETURN_IF_ERROR(CheckSequence(list));
  std::vector<PreTokenizerPtr> parts;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(PreTokenizerPtr part, Parse(list.at(i), depth + 1));
    parts.push_back(std::move(part));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

PreTokenizerPtr MakeBert() {
  std::vector<PreTokenizerPtr> parts;
  parts.push_back(std::make_unique<ClassPreTokenizer>(SplitBehavior::kRemoved, text::IsWhitespace));
  parts.push_back(std::make_unique<ClassPreTokenizer>(SplitBehavior::kIsolated, text::IsPunctuation));
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

absl::StatusOr<PreTokenizerPtr> Parse(const Field& field, int depth) {
  RETURN_IF_ERROR(CheckComponent(field, depth));
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  if (type == "ByteLevel") return ParseByteLevel(field);
  if (type == "Split") return ParseSplit(field);
  if (type == "Metaspace") return ParseMetaspace(field);
  if (type == "Sequence") return ParseSequence(field, depth);
  if (type == "Whitespace") return std::make_unique<WhitespacePreTokenizer>();
  if (type == "WhitespaceSplit")
    return std::make_unique<ClassPreTokenizer>(SplitBehavior::kRemoved, text::IsWhitespace);
  if (type == "BertPreTokenizer") return MakeBert();
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, field["individual_digits"].BoolOr(false));
    return std::make_unique<ClassPreTokenizer>(individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                                               text::IsNumeric);
  }
  if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(field["behavior"], "Isolated"));
    return std::make_unique<ClassPreTokenizer>(behavior, text::IsPunctuation);
  }
  if (type == "CharDelimiterSplit") {
    ASSIGN_OR_RETURN(const char32_t delimiter, OneCharacter(field["delimiter"], ""));
    return std::make_unique<DelimiterPreTokenizer>(delimiter);
  }
  if (type == "FixedLength") {
    ASSIGN_OR_RETURN(const int64_t length, field["length"].IntOr(5, 1, 1 << 20));
    return std::make_unique<FixedLengthPreTokenizer>(length);
  }
  return field["type"].Expected(
      "ByteLevel, Split, Metaspace, Sequence, Whitespace, WhitespaceSplit, BertPreTokenizer, Digits, Punctuation, "
      "CharDelimiterSplit or FixedLength");
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> ParsePreTokenizer(const Field& field) {
  if (!field.present()) return PreTokenizerPtr();
  return Parse(field, 0);
}

}  // namespace switchyard::tokenizer
