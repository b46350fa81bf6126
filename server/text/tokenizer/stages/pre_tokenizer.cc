#include "server/text/tokenizer/stages/pre_tokenizer.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/models/byte_level.h"
#include "server/text/tokenizer/pattern.h"
#include "server/text/tokenizer/stages/component.h"
#include "server/text/unicode/unicode.h"

namespace switchyard::tokenizer {
namespace {

constexpr absl::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Splits at the matches of `finder`, a Regex or a Pattern.
template <class Finder>
PreTokenizer SplitOnMatches(SplitBehavior behavior, bool invert, Finder finder) {
  return [behavior, invert, finder = std::move(finder)](WorkGuard* guard, Pieces* pieces) {
    const auto find = [&](absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) {
      return finder.ForEachMatch(text, visit);
    };
    return SplitPieces(behavior, invert, find, guard, pieces);
  };
}

// Splits on single characters.
template <class Predicate>
PreTokenizer SplitOnCharacters(SplitBehavior behavior, Predicate predicate) {
  return [behavior, predicate](WorkGuard* guard, Pieces* pieces) {
    const auto find = [&](absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) -> absl::Status {
      for (size_t pos = 0; pos < text.size();) {
        const size_t begin = pos;
        if (predicate(DecodeUtf8(text, &pos))) RETURN_IF_ERROR(visit({begin, pos}));
      }
      return absl::OkStatus();
    };
    return SplitPieces(behavior, /*invert=*/false, find, guard, pieces);
  };
}

// See RewritePieces.
template <class Append>
PreTokenizer Rewrite(Append append) {
  return [append = std::move(append)](WorkGuard*, Pieces* pieces) {
    RewritePieces(append, pieces);
    return absl::OkStatus();
  };
}

PreTokenizer InOrder(std::vector<PreTokenizer> parts) {
  return [parts = std::move(parts)](WorkGuard* guard, Pieces* pieces) {
    for (const PreTokenizer& part : parts) RETURN_IF_ERROR(part(guard, pieces));
    return absl::OkStatus();
  };
}

absl::StatusOr<SplitBehavior> ReadBehavior(const Field& field, absl::string_view fallback) {
  static constexpr std::pair<absl::string_view, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  };
  ASSIGN_OR_RETURN(const std::string given, field.StringOr(fallback));
  for (const auto& [name, behavior] : kBehaviors) {
    if (given == name) return behavior;
  }
  return field.Expected("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

absl::StatusOr<PreTokenizer> ReadByteLevel(const Field& field, int) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, field["add_prefix_space"].BoolOr(true));
  ASSIGN_OR_RETURN(const bool use_regex, field["use_regex"].BoolOr(true));
  std::vector<PreTokenizer> parts;
  if (add_prefix_space) {
    parts.push_back(Rewrite([](absl::string_view piece, bool, std::string* out) {
      if (piece[0] != ' ') out->push_back(' ');
      out->append(piece.data(), piece.size());
    }));
  }
  if (use_regex) {
    ASSIGN_OR_RETURN(Regex regex, Regex::Compile(kGpt2Regex));
    parts.push_back(SplitOnMatches(SplitBehavior::kIsolated, /*invert=*/false, std::move(regex)));
  }
  parts.push_back(Rewrite([](absl::string_view piece, bool, std::string* out) { AppendByteLevel(piece, out); }));
  return InOrder(std::move(parts));
}

absl::StatusOr<PreTokenizer> ReadSplit(const Field& field, int) {
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse(field["pattern"]));
  if (!field["behavior"].present()) return field["behavior"].Expected("a split behavior");
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(field["behavior"], ""));
  ASSIGN_OR_RETURN(const bool invert, field["invert"].BoolOr(false));
  return SplitOnMatches(behavior, invert, std::move(pattern));
}

absl::StatusOr<PreTokenizer> ReadMetaspacePreTokenizer(const Field& field, int) {
  ASSIGN_OR_RETURN(const char32_t replacement, field["replacement"].CharacterOr("▁"));
  ASSIGN_OR_RETURN(const bool split, field["split"].BoolOr(true));
  ASSIGN_OR_RETURN(const std::string scheme, ReadPrependScheme(field));
  std::string spelled;
  AppendUtf8(replacement, &spelled);
  std::vector<PreTokenizer> parts;
  parts.push_back(Rewrite([spelled, always = scheme == "always", first = scheme == "first"](
                              absl::string_view piece, bool at_origin, std::string* out) {
    const bool wanted = always || (first && at_origin);
    if (wanted && piece[0] != ' ' && !absl::StartsWith(piece, spelled)) out->append(spelled);
    for (const char c : piece) {
      if (c == ' ') {
        out->append(spelled);
      } else {
        out->push_back(c);
      }
    }
  }));
  if (split) {
    parts.push_back(
        SplitOnCharacters(SplitBehavior::kMergedWithNext, [replacement](char32_t c) { return c == replacement; }));
  }
  return InOrder(std::move(parts));
}

// `\w+|[^\w\s]+`: splits into runs of word characters and runs of signs, and removes whitespace.  A character that is
// both word and space (none exists today) would count as a word character.
absl::StatusOr<PreTokenizer> ReadWhitespace(const Field&, int) {
  std::vector<PreTokenizer> parts;
  parts.push_back(
      SplitOnCharacters(SplitBehavior::kRemoved, [](char32_t c) { return text::IsWhitespace(c) && !text::IsWord(c); }));
  parts.push_back(SplitOnCharacters(SplitBehavior::kContiguous, text::IsWord));
  return InOrder(std::move(parts));
}

absl::StatusOr<PreTokenizer> ReadWhitespaceSplit(const Field&, int) {
  return SplitOnCharacters(SplitBehavior::kRemoved, text::IsWhitespace);
}

absl::StatusOr<PreTokenizer> ReadBertPreTokenizer(const Field&, int) {
  std::vector<PreTokenizer> parts;
  parts.push_back(SplitOnCharacters(SplitBehavior::kRemoved, text::IsWhitespace));
  parts.push_back(SplitOnCharacters(SplitBehavior::kIsolated, text::IsPunctuation));
  return InOrder(std::move(parts));
}

absl::StatusOr<PreTokenizer> ReadDigits(const Field& field, int) {
  ASSIGN_OR_RETURN(const bool individual, field["individual_digits"].BoolOr(false));
  return SplitOnCharacters(individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, text::IsNumeric);
}

absl::StatusOr<PreTokenizer> ReadPunctuation(const Field& field, int) {
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(field["behavior"], "Isolated"));
  return SplitOnCharacters(behavior, text::IsPunctuation);
}

absl::StatusOr<PreTokenizer> ReadDelimiterSplit(const Field& field, int) {
  ASSIGN_OR_RETURN(const char32_t delimiter, field["delimiter"].CharacterOr(""));
  return SplitOnCharacters(SplitBehavior::kRemoved, [delimiter](char32_t c) { return c == delimiter; });
}

absl::StatusOr<PreTokenizer> ReadFixedLength(const Field& field, int) {
  ASSIGN_OR_RETURN(const int64_t length, field["length"].IntOr(5, 1, 1 << 20));
  return [length](WorkGuard* guard, Pieces* pieces) {
    const auto find = [length](absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) -> absl::Status {
      size_t begin = 0;
      int64_t count = 0;
      for (size_t pos = 0; pos < text.size();) {
        pos += Utf8Length(text[pos]);
        if (++count % length != 0) continue;
        RETURN_IF_ERROR(visit({begin, pos}));
        begin = pos;
      }
      return absl::OkStatus();
    };
    return SplitPieces(SplitBehavior::kIsolated, /*invert=*/false, find, guard, pieces);
  };
}

absl::StatusOr<PreTokenizer> ReadPreTokenizer(const Field& field, int depth);

absl::StatusOr<PreTokenizer> ReadSequencePreTokenizer(const Field& field, int depth) {
  ASSIGN_OR_RETURN(std::vector<PreTokenizer> parts, ReadParts(field["pretokenizers"], depth, ReadPreTokenizer));
  return InOrder(std::move(parts));
}

constexpr std::pair<absl::string_view, ComponentReader<PreTokenizer>> kPreTokenizers[] = {
    {"ByteLevel", ReadByteLevel},
    {"Split", ReadSplit},
    {"Metaspace", ReadMetaspacePreTokenizer},
    {"Sequence", ReadSequencePreTokenizer},
    {"Whitespace", ReadWhitespace},
    {"WhitespaceSplit", ReadWhitespaceSplit},
    {"BertPreTokenizer", ReadBertPreTokenizer},
    {"Digits", ReadDigits},
    {"Punctuation", ReadPunctuation},
    {"CharDelimiterSplit", ReadDelimiterSplit},
    {"FixedLength", ReadFixedLength},
};

absl::StatusOr<PreTokenizer> ReadPreTokenizer(const Field& field, int depth) {
  return ReadComponent(kPreTokenizers, field, depth);
}

}  // namespace

absl::StatusOr<PreTokenizer> ParsePreTokenizer(const Field& field) {
  if (!field.present()) return PreTokenizer();
  return ReadPreTokenizer(field, 0);
}

}  // namespace switchyard::tokenizer
