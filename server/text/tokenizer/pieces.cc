#include "server/text/tokenizer/pieces.h"

#include "scheduler/base/status_macros.h"

namespace switchyard::tokenizer {
namespace {

struct Part {
  Match span;
  bool matched;
};

// Joins the parts of one piece by `behavior`, and appends the new pieces.
void Join(SplitBehavior behavior, const std::vector<Part>& parts, std::vector<Match>* out) {
  const size_t first = out->size();
  bool previous_matched = false;
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.matched) out->push_back(part.span);
      }
      return;
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) out->push_back(part.span);
      return;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious:
      for (const Part& part : parts) {
        const bool joins = behavior == SplitBehavior::kContiguous ? part.matched == previous_matched
                                                                  : part.matched && !previous_matched;
        if (joins && out->size() > first) {
          out->back().end = part.span.end;
        } else {
          out->push_back(part.span);
        }
        previous_matched = part.matched;
      }
      return;
    case SplitBehavior::kMergedWithNext:
      for (size_t i = 0; i < parts.size(); ++i) {
        // A match joins the part after it, unless that is also a match.
        const bool joined = i > 0 && parts[i - 1].matched && !parts[i].matched;
        if (joined) {
          out->back().end = parts[i].span.end;
        } else {
          out->push_back(parts[i].span);
        }
      }
      return;
  }
}

}  // namespace

absl::Status SplitPieces(SplitBehavior behavior, bool invert, FindMatches find, WorkGuard* guard, Pieces* pieces) {
  std::vector<Match> spans;
  spans.reserve(pieces->spans.size());
  std::vector<Part> parts;
  for (const Match piece : pieces->spans) {
    parts.clear();
    size_t done = piece.begin;
    RETURN_IF_ERROR(find(pieces->View(piece), [&](Match match) -> absl::Status {
      const Match span{piece.begin + match.begin, piece.begin + match.end};
      if (done < span.begin) parts.push_back({{done, span.begin}, invert});
      parts.push_back({span, !invert});
      done = span.end;
      return guard->Step();
    }));
    if (done < piece.end) parts.push_back({{done, piece.end}, invert});
    const size_t first = spans.size();
    Join(behavior, parts, &spans);
    size_t kept = first;
    for (size_t i = first; i < spans.size(); ++i) {
      if (spans[i].begin < spans[i].end) spans[kept++] = spans[i];
    }
    spans.resize(kept);
  }
  pieces->spans = std::move(spans);
  return absl::OkStatus();
}

}  // namespace switchyard::tokenizer
