#include "scheduler/pipeline/build_parm.h"

#include <utility>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/pipeline/op_buffers.h"

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
    const int dispatched = Add(DispatchAmong(group, pass_), before);
    const int computed = Add(Experts(pass_), {dispatched});
    int last = computed;
    if (baseline()) {
      MicroOp sum = {.kind = MicroOpKind::kAllReduce, .group = Group::kShards, .rows = RowKind::kChoices};
      sum.reads = {ResultOf(pass_)};
      last = Add(std::move(sum), {last});
    }
    std::vector<int> combined = Combine(group, last);
    if (!forward()) {
      Add(ExpertWeights(), {computed});
      combined = {Add({.kind = MicroOpKind::kGate}, combined)};
    }
    if (options_.kind == ParmKind::kS1) Gather(MicroOpKind::kAllGather, Group::kCopies, RowKind::kTokens, combined);
    return std::move(ops_);
  }

 private:
  bool forward() const { return pass_ == Pass::kForward; }
  bool baseline() const { return options_.kind == ParmKind::kBaseline; }

  int Add(MicroOp op, std::vector<int> deps) {
    op.pass = pass_;
    op.deps = std::move(deps);
    ops_.push_back(std::move(op));
    return static_cast<int>(ops_.size()) - 1;
  }

  int Gather(MicroOpKind kind, Group group, RowKind rows, std::vector<int> deps) {
    return Add({.kind = kind, .group = group, .rows = rows}, std::move(deps));
  }

  // Returns the combines, of S2 the gathers behind each part.
  std::vector<int> Combine(Group group, int computed) {
    const int parts = options_.kind == ParmKind::kS2 ? options_.parts : 1;
    std::vector<int> combined, gathered;
    for (int part = 0; part < parts; ++part) {
      MicroOp op = {.kind = MicroOpKind::kCombine, .group = group, .part = part, .num_parts = parts};
      op.reads = {ResultOf(pass_)};
      combined.push_back(Add(std::move(op), {computed}));
      // Behind the next part's start, so that they are under way together.
      if (options_.kind == ParmKind::kS2 && part > 0) gathered.push_back(GatherPart(part - 1, parts, combined));
    }
    if (options_.kind != ParmKind::kS2) return combined;
    gathered.push_back(GatherPart(parts - 1, parts, combined));
    return gathered;
  }

  int GatherPart(int part, int parts, const std::vector<int>& combined) {
    return Add({.kind = MicroOpKind::kAllGather,
                .group = Group::kCopies,
                .rows = RowKind::kChoices,
                .part = part,
                .num_parts = parts},
               {combined[static_cast<size_t>(part)]});
  }

  const ParmOptions& options_;
  const Pass pass_;
  std::vector<MicroOp> ops_;
};

}  // namespace

MoeSchedule BuildParm(const ParmOptions& options) {
  SY_CHECK(1 <= options.parts && options.parts <= kMaxParts);
  static constexpr const char* kNames[] = {"deepspeed_moe", "parm_s1", "parm_s2"};
  static constexpr CopySplit kSplits[] = {CopySplit::kNone, CopySplit::kBeforeGate, CopySplit::kBehindGate};
  MoeSchedule schedule = {.name = kNames[static_cast<int>(options.kind)],
                          .copies = kSplits[static_cast<int>(options.kind)]};
  schedule.forward = ParmBuilder(options, Pass::kForward).Build();
  if (options.trains) schedule.backward = ParmBuilder(options, Pass::kBackward).Build();
  SY_CHECK_OK(Validate(schedule));
  return schedule;
}

}  // namespace switchyard::pipeline
