#include "scheduler/pipeline/build_parm.h"

#include <utility>
#include <vector>

#include "scheduler/base/check.h"

namespace switchyard::pipeline {
namespace {

// One pass: forward of values, backward of gradients.
class ParmBuilder {
 public:
  ParmBuilder(const ParmOptions& options, Pass pass) : options_(options), pass_(pass) {}

  std::vector<MicroOp> Build() {
    const Group group = baseline() ? Group::kExperts : Group::kAllExperts;
    std::vector<int> before;
    if (forward()) before = {Add({.kind = MicroOpKind::kGate}, {})};
    if (baseline()) before = {Gather(MicroOpKind::kAllGather, Group::kShards, RowKind::kTokens, before)};
    MicroOp dispatch = {.kind = MicroOpKind::kDispatch, .group = group};
    dispatch.writes = {BufferSlot{forward() ? BufferKind::kInput : BufferKind::kOutputGradient}};
    int last = Add(std::move(dispatch), before);
    last = Experts(last);
    const int computed = last;
    if (baseline()) {
      MicroOp sum = {.kind = MicroOpKind::kAllReduce, .group = Group::kShards, .rows = RowKind::kChoices};
      sum.reads = {Result()};
      last = Add(std::move(sum), {last});
    }
    std::vector<int> combined = Combine(group, last);
    if (!forward()) {
      MicroOp weights = {.kind = MicroOpKind::kWeights};
      weights.reads = {{BufferKind::kInput}, {BufferKind::kOutputGradient}, {BufferKind::kHiddenGradient}};
      Add(std::move(weights), {computed});
      combined = {Add({.kind = MicroOpKind::kGate}, combined)};
    }
    if (options_.kind == ParmKind::kS1) Gather(MicroOpKind::kAllGather, Group::kCopies, RowKind::kTokens, combined);
    return std::move(ops_);
  }

 private:
  bool forward() const { return pass_ == Pass::kForward; }
  bool baseline() const { return options_.kind == ParmKind::kBaseline; }
  BufferSlot Result() const { return {forward() ? BufferKind::kOutput : BufferKind::kInputGradient}; }

  int Add(MicroOp op, std::vector<int> deps) {
    op.pass = pass_;
    op.deps = std::move(deps);
    ops_.push_back(std::move(op));
    return static_cast<int>(ops_.size()) - 1;
  }

  int Gather(MicroOpKind kind, Group group, RowKind rows, std::vector<int> deps) {
    return Add({.kind = kind, .group = group, .rows = rows}, std::move(deps));
  }

  int Experts(int dispatched) {
    MicroOp op = {.kind = MicroOpKind::kExpert};
    if (forward()) {
      op.reads = {BufferSlot{BufferKind::kInput}};
      op.writes = {{BufferKind::kHidden}, {BufferKind::kOutput}};
    } else {
      op.reads = {{BufferKind::kHidden}, {BufferKind::kOutputGradient}};
      op.writes = {{BufferKind::kHiddenGradient}, {BufferKind::kInputGradient}};
    }
    return Add(std::move(op), {dispatched});
  }

  // Returns the combines.  Of S2 each part is gathered behind it.
  std::vector<int> Combine(Group group, int computed) {
    const int parts = options_.kind == ParmKind::kS2 ? options_.parts : 1;
    std::vector<int> combined;
    int gathered = -1;
    for (int part = 0; part < parts; ++part) {
      MicroOp op = {.kind = MicroOpKind::kCombine, .group = group, .part = part, .num_parts = parts};
      op.reads = {Result()};
      combined.push_back(Add(std::move(op), {computed}));
      // Behind the next part's start, so that they are under way together.
      if (gathered >= 0) GatherPart(gathered, parts, combined[static_cast<size_t>(gathered)]);
      if (options_.kind == ParmKind::kS2) gathered = part;
    }
    if (gathered >= 0) GatherPart(gathered, parts, combined.back());
    return combined;
  }

  void GatherPart(int part, int parts, int combined) {
    Add({.kind = MicroOpKind::kAllGather,
         .group = Group::kCopies,
         .rows = RowKind::kChoices,
         .part = part,
         .num_parts = parts},
        {combined});
  }

  const ParmOptions& options_;
  const Pass pass_;
  std::vector<MicroOp> ops_;
};

}  // namespace

MoeSchedule BuildParm(const ParmOptions& options) {
  SY_CHECK(1 <= options.parts && options.parts <= kMaxParts);
  static constexpr const char* kNames[] = {"deepspeed_moe", "parm_s1", "parm_s2"};
  MoeSchedule schedule = {.name = kNames[static_cast<int>(options.kind)],
                          .splits_copies = options.kind != ParmKind::kBaseline};
  schedule.forward = ParmBuilder(options, Pass::kForward).Build();
  if (options.trains) schedule.backward = ParmBuilder(options, Pass::kBackward).Build();
  SY_CHECK_OK(Validate(schedule));
  return schedule;
}

}  // namespace switchyard::pipeline
