#include "tests/bench/schedules/named_program.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/pipeline/build_parm.h"
#include "scheduler/pipeline/build_sliced.h"

namespace switchyard::bench {
namespace {

using pipeline::HiddenRestore;
using pipeline::InputRestore;

absl::Status Unknown(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat("no program: '", name, "'"));
}

absl::StatusOr<pipeline::MoeSchedule> ParseExpertParallel(absl::string_view name,
                                                          const std::vector<absl::string_view>& words,
                                                          bool* one_queue) {
  pipeline::ExpertParallelOptions options = {.trains = true};
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &options.micro_batches) || options.micro_batches < 1 ||
      options.micro_batches > pipeline::kMaxMicroBatches)
    return Unknown(name);
  static constexpr std::pair<absl::string_view, pipeline::RestoreStrategy> kStrategies[] = {
      {"S1", {InputRestore::kOffload, HiddenRestore::kOffload}},
      {"S2", {InputRestore::kResend, HiddenRestore::kOffload}},
      {"S3", {InputRestore::kOffload, HiddenRestore::kRecompute}},
      {"S4", {InputRestore::kResend, HiddenRestore::kRecompute}}};
  for (size_t i = 2; i < words.size(); ++i) {
    bool known = true;
    if (words[i] == "first") {
      options.dispatch_first = true;
    } else if (words[i] == "queue") {
      *one_queue = true;
    } else if (words[i] == "turn") {
      options.in_turn = true;
    } else if (words[i] == "peers") {
      options.cut = pipeline::Cut::kPeers;
    } else if (words[i] == "joint") {
      options.joint_gradients = true;
    } else {
      known = false;
    }
    for (const auto& [strategy, restore] : kStrategies) {
      if (words[i] != strategy) continue;
      options.restore = restore;
      known = true;
    }
    if (!known) return Unknown(name);
  }
  if (options.dispatch_first && !options.restore.keeps_all()) return Unknown(name);
  return pipeline::BuildExpertParallel(options);
}

absl::StatusOr<pipeline::MoeSchedule> ParseSchedule(absl::string_view name, bool* one_queue) {
  const std::vector<absl::string_view> words = absl::StrSplit(name, ':');
  if (words[0] == "ep") return ParseExpertParallel(name, words, one_queue);
  const absl::string_view kind = words.size() > 1 ? words[1] : "";
  if (words[0] == "sliced" && words.size() == 2 && (kind == "sum" || kind == "gather"))
    return pipeline::BuildSliced({.sums = kind == "sum", .trains = true});
  pipeline::ParmOptions options = {.trains = true};
  if (kind == "s1") options.kind = pipeline::ParmKind::kS1;
  if (kind == "s2") options.kind = pipeline::ParmKind::kS2;
  const bool known = words[0] == "parm" && (kind == "baseline" || options.kind != pipeline::ParmKind::kBaseline);
  const bool parts = known && kind == "s2" && words.size() == 3;
  if (!known || words.size() != (parts ? 3U : 2U) || (parts && !absl::SimpleAtoi(words[2], &options.parts)) ||
      options.parts < 1 || options.parts > pipeline::kMaxParts)
    return Unknown(name);
  return pipeline::BuildParm(options);
}

}  // namespace

absl::StatusOr<NamedProgram> ParseProgram(absl::string_view name) {
  NamedProgram program = {.name = std::string(name)};
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(name, absl::MaxSplits('@', 1));
  ASSIGN_OR_RETURN(program.schedule, ParseSchedule(parts.first, &program.one_queue));
  if (parts.first.size() == name.size()) return program;
  const std::pair<absl::string_view, absl::string_view> sizes = absl::StrSplit(parts.second, absl::MaxSplits('x', 1));
  if (!absl::SimpleAtoi(sizes.first, &program.mesh.shards) || !absl::SimpleAtoi(sizes.second, &program.mesh.copies))
    return Unknown(name);
  return program;
}

}  // namespace switchyard::bench
