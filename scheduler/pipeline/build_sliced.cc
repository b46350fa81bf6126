#include "scheduler/pipeline/build_sliced.h"

#include <utility>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/pipeline/op_buffers.h"

namespace switchyard::pipeline {
namespace {

std::vector<MicroOp> BuildPass(const SlicedOptions& options, Pass pass) {
  const bool forward = pass == Pass::kForward;
  std::vector<MicroOp> ops;
  const auto add = [&](MicroOp op, std::vector<int> deps) {
    op.pass = pass;
    op.deps = std::move(deps);
    ops.push_back(std::move(op));
    return static_cast<int>(ops.size()) - 1;
  };
  std::vector<int> before;
  if (forward) before = {add({.kind = MicroOpKind::kGate}, {})};
  const int taken = add(DispatchAmong(Group::kSelf, pass), before);
  const int computed = add(Experts(pass), {taken});
  int back = computed;
  if (!options.sums) {
    MicroOp gather = {.kind = MicroOpKind::kAllGather, .group = Group::kCopies, .rows = RowKind::kChoices};
    gather.reads = {ResultOf(pass)};
    back = add(std::move(gather), {back});
  }
  // Under the gather, or the sum.
  if (!forward && !options.sums) add(ExpertWeights(), {computed});
  MicroOp combine = {.kind = MicroOpKind::kCombine, .group = Group::kSelf};
  combine.reads = {ResultOf(pass)};
  const int combined = add(std::move(combine), {back});
  int last = combined;
  if (!forward) last = add({.kind = MicroOpKind::kGate}, {combined});
  if (options.sums) add({.kind = MicroOpKind::kAllReduce, .group = Group::kCopies}, {last});
  if (!forward && options.sums) add(ExpertWeights(), {computed});
  return ops;
}

}  // namespace

MoeSchedule BuildSliced(const SlicedOptions& options) {
  MoeSchedule schedule = {.name = options.sums ? "sliced_sum" : "sliced_gather"};
  schedule.forward = BuildPass(options, Pass::kForward);
  if (options.trains) schedule.backward = BuildPass(options, Pass::kBackward);
  SY_CHECK_OK(Validate(schedule));
  return schedule;
}

}  // namespace switchyard::pipeline
