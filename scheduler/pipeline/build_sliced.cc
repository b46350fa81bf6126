#include "scheduler/pipeline/build_sliced.h"

#include <utility>
#include <vector>

#include "scheduler/base/check.h"

namespace switchyard::pipeline {
namespace {

std::vector<MicroOp> BuildPass(const SlicedOptions& options, Pass pass) {
  const bool forward = pass == Pass::kForward;
  const BufferSlot result = {forward ? BufferKind::kOutput : BufferKind::kInputGradient};
  std::vector<MicroOp> ops;
  const auto add = [&](MicroOp op, std::vector<int> deps) {
    op.pass = pass;
    op.deps = std::move(deps);
    ops.push_back(std::move(op));
    return static_cast<int>(ops.size()) - 1;
  };
  std::vector<int> before;
  if (forward) before = {add({.kind = MicroOpKind::kGate}, {})};
  MicroOp take = {.kind = MicroOpKind::kDispatch, .group = Group::kSelf};
  take.writes = {BufferSlot{forward ? BufferKind::kInput : BufferKind::kOutputGradient}};
  const int taken = add(std::move(take), before);
  MicroOp experts = {.kind = MicroOpKind::kExpert};
  if (forward) {
    experts.reads = {BufferSlot{BufferKind::kInput}};
    experts.writes = {{BufferKind::kHidden}, {BufferKind::kOutput}};
  } else {
    experts.reads = {{BufferKind::kHidden}, {BufferKind::kOutputGradient}};
    experts.writes = {{BufferKind::kHiddenGradient}, {BufferKind::kInputGradient}};
  }
  const int computed = add(std::move(experts), {taken});
  int back = computed;
  if (!options.sums) {
    MicroOp gather = {.kind = MicroOpKind::kAllGather, .group = Group::kCopies, .rows = RowKind::kChoices};
    gather.reads = {result};
    back = add(std::move(gather), {back});
  }
  // Under the gather, or the sum.
  const auto add_weights = [&] {
    MicroOp weights = {.kind = MicroOpKind::kWeights};
    weights.reads = {{BufferKind::kInput}, {BufferKind::kOutputGradient}, {BufferKind::kHiddenGradient}};
    add(std::move(weights), {computed});
  };
  if (!forward && !options.sums) add_weights();
  MicroOp combine = {.kind = MicroOpKind::kCombine, .group = Group::kSelf};
  combine.reads = {result};
  const int combined = add(std::move(combine), {back});
  int last = combined;
  if (!forward) last = add({.kind = MicroOpKind::kGate}, {combined});
  if (options.sums) add({.kind = MicroOpKind::kAllReduce, .group = Group::kCopies}, {last});
  if (!forward && options.sums) add_weights();
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
