#include "scheduler/pipeline/schedule_timeline.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace switchyard::pipeline {
namespace {

// The op before which `i` is finished: the first that names it; none: behind the last.
size_t FinishOf(const std::vector<MicroOp>& ops, size_t i) {
  for (size_t j = i + 1; j < ops.size(); ++j) {
    if (std::count(ops[j].deps.begin(), ops[j].deps.end(), static_cast<int>(i)) > 0) return j;
  }
  return ops.size();
}

struct Line {
  std::string text;
  size_t free_from = 0;  // op
};

}  // namespace

std::string OpName(const MicroOp& op) {
  static constexpr const char* kLetters[] = {"G", "S", "C", "R", "W", "AG", "AR", "A", "M", "M"};
  const char* const what = !IsCopying(op.kind) ? "" : op.SlotOf(BufferKind::kInput) >= 0 ? "i" : "h";
  const bool shared = op.kind == MicroOpKind::kExpert && op.experts == ExpertSet::kShared;
  const bool whole = shared || op.kind == MicroOpKind::kGate;
  return absl::StrCat(shared ? "H" : kLetters[static_cast<int>(op.kind)], what,
                      whole && op.num_chunks == 1 ? "" : absl::StrCat(op.chunk),
                      op.num_parts == 1 ? "" : absl::StrCat(".", op.part), op.pass == Pass::kBackward ? "'" : "");
}

std::string Timeline(const std::vector<MicroOp>& ops) {
  size_t width = 0;
  for (const MicroOp& op : ops) width = std::max(width, OpName(op).size());
  ++width;
  Line compute;
  std::vector<Line> exchanges, copies;
  const auto put = [width](Line* line, size_t begin, size_t end, std::string name, char fill) {
    line->text.resize(begin * width, ' ');
    name.resize((end - begin) * width - 1, fill);
    absl::StrAppend(&line->text, name, " ");
    line->free_from = end;
  };
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!IsAsynchronous(ops[i].kind)) {
      put(&compute, i, i + 1, OpName(ops[i]), ' ');
      continue;
    }
    std::vector<Line>& lines = IsCopying(ops[i].kind) ? copies : exchanges;
    auto line = std::find_if(lines.begin(), lines.end(), [i](const Line& of) { return of.free_from <= i; });
    if (line == lines.end()) line = lines.insert(line, Line{});
    put(&*line, i, FinishOf(ops, i), OpName(ops[i]), '-');
  }
  std::string text = absl::StrCat("compute   ", absl::StripTrailingAsciiWhitespace(compute.text), "\n");
  for (const Line& line : exchanges) {
    absl::StrAppend(&text, "exchange  ", absl::StripTrailingAsciiWhitespace(line.text), "\n");
  }
  for (const Line& line : copies)
    absl::StrAppend(&text, "copy      ", absl::StripTrailingAsciiWhitespace(line.text), "\n");
  return text;
}

}  // namespace switchyard::pipeline
