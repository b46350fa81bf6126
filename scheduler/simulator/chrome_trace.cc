#include "scheduler/simulator/chrome_trace.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace switchyard::simulator {
namespace {

constexpr int kCopies = 1, kFirstQueue = 2;

int RowOf(const SimInput& input, const SimOp& op) {
  if (op.kind == SimOpKind::kCompute) return 0;
  return op.kind == SimOpKind::kCopy ? kCopies
                                     : kFirstQueue + input.collectives[static_cast<size_t>(op.collective)].queue;
}

std::string NameOfRow(int row) {
  if (row == 0) return "compute";
  return row == kCopies ? "copies" : absl::StrCat("collectives ", row - kFirstQueue);
}

std::string Named(absl::string_view what, size_t rank, int row, absl::string_view name) {
  return absl::StrFormat(R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":"%s"}})", what, rank, row, name);
}

}  // namespace

std::string ChromeTrace(const SimInput& input, const SimResult& result) {
  std::vector<std::string> events;
  for (size_t rank = 0; rank < input.ranks.size(); ++rank) {
    events.push_back(Named("process_name", rank, 0, absl::StrCat("rank ", rank)));
    std::set<int> rows;
    for (size_t i = 0; i < input.ranks[rank].size(); ++i) {
      const SimOp& op = input.ranks[rank][i];
      const SimInterval& at = result.ops[rank][i];
      const int row = RowOf(input, op);
      if (rows.insert(row).second) events.push_back(Named("thread_name", rank, row, NameOfRow(row)));
      const std::string name = absl::StrReplaceAll(op.name, {{"\\", "\\\\"}, {"\"", "\\\""}});
      events.push_back(absl::StrFormat(R"({"ph":"X","name":"%s","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f})", name, rank,
                                       row, 1e6 * at.begin, 1e6 * (at.end - at.begin)));
    }
  }
  return absl::StrCat("{\"traceEvents\":[\n", absl::StrJoin(events, ",\n"), "\n]}\n");
}

}  // namespace switchyard::simulator
