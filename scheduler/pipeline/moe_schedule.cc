#include "scheduler/pipeline/moe_schedule.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::pipeline {
namespace {

absl::Status Wrong(const MoeSchedule& schedule, int index, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("schedule ", schedule.name, ", op ", index, " (",
                                                 MicroOpKindName(schedule.ops[index].kind), "): ", what));
}

// Checks one op by itself.
absl::Status CheckOp(const MoeSchedule& schedule, int index) {
  const MicroOp& op = schedule.ops[index];
  if (op.num_chunks < 1 || op.chunk < 0 || op.chunk >= op.num_chunks) {
    return Wrong(schedule, index, absl::StrCat("chunk ", op.chunk, " of ", op.num_chunks));
  }
  if (op.num_chunks != 1 && op.num_chunks != schedule.num_chunks) {
    return Wrong(schedule, index,
                 absl::StrCat("cuts rows into ", op.num_chunks, ", the schedule into ", schedule.num_chunks));
  }
  for (const int dep : op.deps) {
    if (dep < 0 || dep >= index)
      return Wrong(schedule, index, absl::StrCat("depends on op ", dep, ", which is not earlier"));
  }
  return absl::OkStatus();
}

// Whether `index` needs an op that fits, directly or through others.
template <class Fits>
bool Needs(const MoeSchedule& schedule, int index, const Fits& fits) {
  std::vector<char> reached(schedule.ops.size(), 0);
  reached[index] = 1;
  for (int i = index; i >= 0; --i) {
    if (!reached[i]) continue;
    if (i != index && fits(schedule.ops[i])) return true;
    for (const int dep : schedule.ops[i].deps) reached[dep] = 1;
  }
  return false;
}

bool IsRoutedExpert(const MicroOp& op) { return op.kind == MicroOpKind::kExpert && op.experts == ExpertSet::kRouted; }

// Checks gate → dispatch → experts → combine, by dependencies, for the chunk of the op at `index`.
absl::Status CheckChain(const MoeSchedule& schedule, int index) {
  const MicroOp& op = schedule.ops[index];
  const auto same_rows = [&op](const MicroOp& other) {
    return other.num_chunks == 1 || (other.num_chunks == op.num_chunks && other.chunk == op.chunk);
  };
  if (op.kind == MicroOpKind::kDispatch) {
    const auto gate = [&](const MicroOp& other) { return other.kind == MicroOpKind::kGate && same_rows(other); };
    if (!Needs(schedule, index, gate)) return Wrong(schedule, index, "does not depend on a gate of its rows");
  }
  if (IsRoutedExpert(op)) {
    const auto sent = [&](const MicroOp& other) { return other.kind == MicroOpKind::kDispatch && same_rows(other); };
    if (!Needs(schedule, index, sent)) return Wrong(schedule, index, "does not depend on the dispatch of its rows");
  }
  if (op.kind == MicroOpKind::kCombine) {
    const auto done = [&](const MicroOp& other) { return IsRoutedExpert(other) && same_rows(other); };
    if (!Needs(schedule, index, done)) return Wrong(schedule, index, "does not depend on the experts of its rows");
    const auto shared = [](const MicroOp& other) {
      return other.kind == MicroOpKind::kExpert && other.experts == ExpertSet::kShared;
    };
    for (const MicroOp& other : schedule.ops) {
      if (shared(other) && !Needs(schedule, index, shared)) {
        return Wrong(schedule, index, "does not depend on the shared expert, whose output it adds");
      }
    }
  }
  return absl::OkStatus();
}

// Checks that each of the three is there exactly once for every chunk.
absl::Status CheckCounts(const MoeSchedule& schedule) {
  std::vector<int> dispatched(schedule.num_chunks, 0), computed(schedule.num_chunks, 0),
      combined(schedule.num_chunks, 0);
  int shared = 0;
  for (const MicroOp& op : schedule.ops) {
    if (op.kind == MicroOpKind::kExpert && op.experts == ExpertSet::kShared) ++shared;
    if (op.num_chunks != schedule.num_chunks) continue;
    if (op.kind == MicroOpKind::kDispatch) ++dispatched[op.chunk];
    if (IsRoutedExpert(op)) ++computed[op.chunk];
    if (op.kind == MicroOpKind::kCombine) ++combined[op.chunk];
  }
  for (int chunk = 0; chunk < schedule.num_chunks; ++chunk) {
    if (dispatched[chunk] != 1 || computed[chunk] != 1 || combined[chunk] != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "schedule ", schedule.name, ": chunk ", chunk, " is dispatched ", dispatched[chunk], " times, computed ",
          computed[chunk], " times, combined ", combined[chunk], " times; each must be once"));
    }
  }
  if (shared > 1) {
    return absl::InvalidArgumentError(absl::StrCat("schedule ", schedule.name, ": ", shared, " shared-expert ops"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* MicroOpKindName(MicroOpKind kind) {
  static constexpr const char* kNames[] = {"split", "gate", "dispatch", "expert", "combine"};
  return kNames[static_cast<int>(kind)];
}

bool IsCommunicating(MicroOpKind kind) { return kind == MicroOpKind::kDispatch || kind == MicroOpKind::kCombine; }

absl::Status Validate(const MoeSchedule& schedule) {
  if (schedule.num_chunks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("schedule ", schedule.name, ": ", schedule.num_chunks, " chunks"));
  }
  for (int i = 0; i < static_cast<int>(schedule.ops.size()); ++i) {
    RETURN_IF_ERROR(CheckOp(schedule, i));
    RETURN_IF_ERROR(CheckChain(schedule, i));
  }
  return CheckCounts(schedule);
}

ChunkRange RowsOfChunk(int64_t rows, int chunk, int num_chunks) {
  SY_CHECK_GE(rows, 0);
  SY_CHECK_GE(chunk, 0);
  SY_CHECK_LT(chunk, num_chunks);
  const int64_t base = rows / num_chunks;
  const int64_t longer = rows % num_chunks;  // so many chunks have one row more
  const int64_t before = chunk < longer ? chunk : longer;
  return {chunk * base + before, base + (chunk < longer ? 1 : 0)};
}

}  // namespace switchyard::pipeline
