// A text and its pieces, which the model tokenizes one by one: in order, without overlap, never empty.
//
// All pieces share one buffer: splitting only changes offsets; ByteLevel and Metaspace, which change characters, copy
// the text.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/text/tokenizer/regex.h"
#include "server/text/tokenizer/work_guard.h"

namespace switchyard::tokenizer {

struct Pieces {
  std::string text;
  std::vector<Match> spans;
  bool starts_at_origin = false;  // text's first character comes from the first character of the whole input

  absl::string_view View(Match span) const { return absl::string_view(text).substr(span.begin, span.end - span.begin); }
  // Whether this span begins where the whole input began.
  bool AtOrigin(Match span) const { return starts_at_origin && span.begin == 0; }
};

// What happens to the matches of a pattern.  For "the-final--countdown" and "-":
enum class SplitBehavior {
  kRemoved,             // the  final  countdown
  kIsolated,            // the  -  final  -  -  countdown
  kMergedWithPrevious,  // the-  final-  -  countdown
  kMergedWithNext,      // the  -final  -  -countdown
  kContiguous,          // the  -  final  --  countdown
};

// Finds the matches in one piece's text, left to right, with offsets relative to the piece.
using FindMatches = absl::FunctionRef<absl::Status(absl::string_view, absl::FunctionRef<absl::Status(Match)>)>;

// Splits every piece.  `invert` swaps the matches with the text between them.
absl::Status SplitPieces(SplitBehavior behavior, bool invert, FindMatches find, WorkGuard* guard, Pieces* pieces);

// Rebuilds the text: `append` receives each piece and whether it is at the origin, and appends its new text.
template <class Append>
void RewritePieces(Append append, Pieces* pieces) {
  std::string text;
  text.reserve(pieces->text.size() + pieces->text.size() / 4);
  const bool starts_at_origin = !pieces->spans.empty() && pieces->AtOrigin(pieces->spans.front());
  size_t kept = 0;
  for (const Match span : pieces->spans) {
    const size_t begin = text.size();
    append(pieces->View(span), pieces->AtOrigin(span), &text);
    if (text.size() > begin) pieces->spans[kept++] = {begin, text.size()};
  }
  pieces->spans.resize(kept);
  pieces->text = std::move(text);
  pieces->starts_at_origin = starts_at_origin;
}

}  // namespace switchyard::tokenizer
