// What Validate refuses, and that it would miss no dependency.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/pipeline/build_parm.h"
#include "scheduler/pipeline/build_sliced.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "scheduler/pipeline/schedule_timeline.h"

namespace switchyard::pipeline {
namespace {

using testing::HasSubstr;

// A mistake, in a program of all kinds of ops, is found and named.
class ValidateTest : public testing::Test {
 protected:
  static MicroOp* Find(std::vector<MicroOp>* ops, const char* name) {
    const auto it = std::find_if(ops->begin(), ops->end(), [name](const MicroOp& op) { return OpName(op) == name; });
    return it == ops->end() ? nullptr : &*it;
  }
  MicroOp* Forward(const char* name) { return Find(&schedule_.forward, name); }
  MicroOp* Backward(const char* name) { return Find(&schedule_.backward, name); }
  // What is wrong with the program, which is right again then.
  std::string Wrong() {
    const absl::Status status = Validate(schedule_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    schedule_ = good_;
    return std::string(status.message());
  }

  const MoeSchedule good_ = BuildExpertParallel({.micro_batches = 3, .shared_expert = true, .trains = true});
  MoeSchedule schedule_ = good_;
};

TEST_F(ValidateTest, NamesAnOpThatIsWrongByItself) {
  schedule_.num_chunks = 0;
  EXPECT_THAT(Wrong(), HasSubstr("0 chunks"));
  schedule_.forward[0].deps = {5};
  EXPECT_THAT(Wrong(), HasSubstr("forward op 0 (G): depends on op 5, which is not earlier"));
  schedule_.forward[1].deps = {1};
  EXPECT_THAT(Wrong(), HasSubstr("depends on op 1, which is not earlier"));
  Forward("S0")->chunk = 3;
  EXPECT_THAT(Wrong(), HasSubstr("chunk 3 of 3"));
  Forward("S0")->num_chunks = 4;
  EXPECT_THAT(Wrong(), HasSubstr("cuts rows into 4"));
  Forward("C0")->pass = Pass::kBackward;
  EXPECT_THAT(Wrong(), HasSubstr("computes gradients in the forward program"));
  Backward("W0'")->pass = Pass::kForward;
  EXPECT_THAT(Wrong(), HasSubstr("is of gradients alone"));
  Forward("C1")->reads.clear();
  EXPECT_THAT(Wrong(), HasSubstr("(C1): reads other buffers than its kind does"));
  Backward("C1'")->writes.pop_back();
  EXPECT_THAT(Wrong(), HasSubstr("(C1'): writes other buffers than its kind does"));
  Forward("C1")->reads[0].slot = -1;
  EXPECT_THAT(Wrong(), HasSubstr("slot -1 of input"));
}

TEST_F(ValidateTest, NamesWhatIsMissingInTheOrder) {
  Forward("S1")->deps.clear();
  EXPECT_THAT(Wrong(), HasSubstr("(S1): does not depend on a gate"));
  std::erase(Forward("R0")->deps, 2);  // reached through the experts, whose slot it used
  EXPECT_EQ(Validate(schedule_), absl::OkStatus());
  std::erase(Forward("R1")->deps, 2);
  EXPECT_THAT(Wrong(), HasSubstr("(R1): does not depend on the shared expert"));
  std::erase(Backward("G'")->deps, static_cast<int>(Backward("R1'") - schedule_.backward.data()));
  EXPECT_THAT(Wrong(), HasSubstr("(G'): does not depend on the gradients of its rows' weights"));
  schedule_.forward.pop_back();
  EXPECT_THAT(Wrong(),
              HasSubstr("forward: chunk 2 is gated 1 times, computed 1 times, combined 0 times; each must be once"));
  std::erase_if(schedule_.backward, [](const MicroOp& op) { return op.kind == MicroOpKind::kGate; });
  EXPECT_THAT(Wrong(), HasSubstr("backward: chunk 0 is gated 0 times"));
  schedule_.backward.push_back(*Backward("G'"));
  EXPECT_THAT(Wrong(), HasSubstr("is gated 2 times"));
  std::erase_if(schedule_.backward, [](const MicroOp& op) { return OpName(op) == "H'"; });
  EXPECT_NE(Wrong(), "");
  Forward("R2")->num_chunks = 1, Forward("R2")->chunk = 0;
  EXPECT_THAT(Wrong(), HasSubstr("is of all rows, where rows are cut"));
  Backward("W0'")->chunk = 1;
  EXPECT_THAT(Wrong(), HasSubstr("which has the rows of chunk 0"));
}

TEST_F(ValidateTest, NamesGroupsAndPartsThatAreNone) {
  Forward("S0")->group = Group::kShards;
  EXPECT_THAT(Wrong(), HasSubstr("(S0): is among shards"));
  Forward("R0")->num_parts = 0;
  EXPECT_THAT(Wrong(), HasSubstr("(R0.0): part 0 of 0"));
  Forward("S0")->num_parts = 2;
  EXPECT_THAT(Wrong(), HasSubstr("(S0.0): is cut into parts"));
  Forward("R0")->num_parts = 2;
  EXPECT_THAT(Wrong(), HasSubstr("forward: combine of chunk 0 is not in 2 parts, each once"));
  for (const auto& [program, error] : std::vector<std::pair<ParmOptions, const char*>>{
           {{}, "(AG0): is among experts"}, {{.kind = ParmKind::kS1}, "(AG0): is among experts"}}) {
    schedule_ = BuildParm(program);
    Forward("AG0")->group = Group::kExperts;
    EXPECT_THAT(Wrong(), HasSubstr(error));
  }
  schedule_ = BuildParm({});
  std::erase(Forward("S0")->deps, 1);
  Forward("S0")->deps.push_back(0);
  EXPECT_THAT(Wrong(), HasSubstr("(S0): does not depend on op 1, whose rows it takes"));
  schedule_ = BuildParm({});
  Forward("R0")->deps = {3};
  EXPECT_THAT(Wrong(), HasSubstr("(R0): does not depend on op 4, whose rows it takes"));
  schedule_ = BuildParm({.kind = ParmKind::kS1, .trains = true});
  Backward("AG0'")->deps = {2};
  EXPECT_THAT(Wrong(), HasSubstr("(AG0'): does not depend on those who make its rows"));
  schedule_ = BuildParm({.kind = ParmKind::kS2, .parts = 2});
  std::erase_if(schedule_.forward, [](const MicroOp& op) { return OpName(op) == "AG0.1"; });
  EXPECT_THAT(Wrong(), HasSubstr("forward: all_gather of chunk 0 is not in 2 parts, each once"));
  schedule_ = BuildParm({});
  std::swap(*Forward("AR0"), *Forward("R0"));
  Forward("R0")->deps = {3};
  EXPECT_THAT(Wrong(), HasSubstr("(AR0): changes what op 4 has sent"));
  schedule_ = BuildParm({.kind = ParmKind::kS1});
  Forward("R0")->group = Group::kExperts;
  EXPECT_THAT(Wrong(), HasSubstr("forward: rows go among all experts and among experts"));
  schedule_ = BuildParm({});
  MicroOp again = *Forward("AR0");
  again.kind = MicroOpKind::kAllGather;
  schedule_.forward.insert(schedule_.forward.begin() + 5, again);
  EXPECT_THAT(Wrong(), HasSubstr("(AG0): does not depend on op 4, whose rows it takes"));
}

TEST_F(ValidateTest, NamesWhatCannotBeRestored) {
  schedule_ = BuildExpertParallel(
      {.micro_batches = 2, .trains = true, .restore = {InputRestore::kOffload, HiddenRestore::kOffload}});
  const MoeSchedule offloads = schedule_;
  const auto wrong = [&] {
    const std::string message(Validate(schedule_).message());
    schedule_ = offloads;
    return message;
  };
  EXPECT_EQ(wrong(), "");
  Forward("Mh1")->reads[0].kind = BufferKind::kInput;
  EXPECT_THAT(wrong(), HasSubstr("reads input 0, which has the rows of chunk 0"));
  std::swap(*Forward("R1"), *Forward("Mh1"));
  std::erase_if(schedule_.forward, [](const MicroOp& op) { return OpName(op) == "Mh1"; });
  EXPECT_THAT(wrong(), HasSubstr("(Mh1): restores hidden 0, whose rows were not saved"));
  Backward("Mh1")->kind = MicroOpKind::kSave;
  EXPECT_NE(wrong(), "");
  Backward("Mh1")->pass = Pass::kBackward;
  EXPECT_THAT(wrong(), HasSubstr("gradients are neither kept nor computed again"));
  Forward("Mh0")->kind = MicroOpKind::kRestore;
  EXPECT_THAT(wrong(), HasSubstr("restores in the forward program"));
}

TEST_F(ValidateTest, NamesReadsOfWhatIsNotThere) {
  Forward("C1")->reads[0].slot = 7;
  EXPECT_THAT(Wrong(), HasSubstr("reads input 7, which nothing has written"));
  Forward("C1")->reads[0].slot = 0;
  EXPECT_THAT(Wrong(), HasSubstr("(C1): reads input 0, which has the rows of chunk 0"));
  // Nothing is done twice.
  MicroOp again = *Forward("S0");
  again.writes[0].slot = 9;
  schedule_.forward.push_back(again);
  EXPECT_THAT(Wrong(), HasSubstr("(S0): writes the same rows a second time, to input 9"));
  // The shared expert's rows are no chunk's.
  schedule_ = BuildExpertParallel({.micro_batches = 2,
                                   .shared_expert = true,
                                   .trains = true,
                                   .restore = {InputRestore::kKeep, HiddenRestore::kOffload}});
  MicroOp save = *Forward("Mh0");
  const auto shared = Forward("H") - schedule_.forward.data();
  save.deps = {static_cast<int>(shared)};
  schedule_.forward.insert(schedule_.forward.begin() + shared + 1, save);
  EXPECT_THAT(Wrong(), HasSubstr("(Mh0): reads hidden 0, which has rows of the shared expert"));
  const MicroOp values = *Forward("C0");
  schedule_.backward.insert(schedule_.backward.begin(), values);
  EXPECT_THAT(Wrong(), HasSubstr("backward op 0 (C0): computes values in the backward program"));
  // Only one of two slots stays as it was until backward.
  Forward("S1")->writes[0].slot = 0;
  EXPECT_THAT(Wrong(), HasSubstr("overwrites input 0 without depending on op"));
}

// Whether op i depends on `dep` without naming it.
bool IsImplied(const std::vector<MicroOp>& ops, size_t i, int dep) {
  std::vector<char> reached(ops.size(), 0);
  for (const int other : ops[i].deps) {
    if (other != dep) reached[static_cast<size_t>(other)] = 1;
  }
  for (size_t j = i; j-- > 0;) {
    if (reached[j] == 0) continue;
    for (const int through : ops[j].deps) reached[static_cast<size_t>(through)] = 1;
  }
  return reached[static_cast<size_t>(dep)] != 0;
}

// Counts the dependencies of a program without which it would be valid, too, but for those that others imply.
int NotNeeded(const MoeSchedule& good, int* needed) {
  int not_needed = 0;
  for (const bool backward : {false, true}) {
    const std::vector<MicroOp>& ops = backward ? good.backward : good.forward;
    for (size_t i = 0; i < ops.size(); ++i) {
      for (const int dep : ops[i].deps) {
        if (IsImplied(ops, i, dep)) continue;
        MoeSchedule without = good;
        std::erase((backward ? without.backward : without.forward)[i].deps, dep);
        ++(Validate(without).ok() ? not_needed : *needed);
      }
    }
  }
  return not_needed;
}

TEST(ValidateDependenciesTest, EachThatNoOtherImpliesIsNeeded) {
  constexpr int kInTurn = 4;       // dispatches of five chunks take their turn for speed alone,
  constexpr int kInTurnTwice = 9;  // as do two of each
  int needed = 0;
  for (const bool in_turn : {false, true}) {
    const ExpertParallelOptions inference = {.micro_batches = 5, .shared_expert = true, .in_turn = in_turn};
    EXPECT_EQ(NotNeeded(BuildExpertParallel(inference), &needed), in_turn ? kInTurn : 0);
    for (const InputRestore input : {InputRestore::kKeep, InputRestore::kOffload, InputRestore::kResend}) {
      for (const HiddenRestore hidden : {HiddenRestore::kKeep, HiddenRestore::kOffload, HiddenRestore::kRecompute}) {
        ExpertParallelOptions options = inference;
        options.trains = true;
        options.restore = {input, hidden};
        const int backward = input == InputRestore::kResend ? kInTurnTwice : kInTurn;
        EXPECT_EQ(NotNeeded(BuildExpertParallel(options), &needed), in_turn ? kInTurn + backward : 0)
            << static_cast<int>(input) << static_cast<int>(hidden);
      }
    }
  }
  EXPECT_GT(needed, 1000);
  for (const bool joint : {false, true}) {
    const MoeSchedule first =
        BuildExpertParallel({.micro_batches = 5, .dispatch_first = true, .joint_gradients = joint, .trains = true});
    EXPECT_EQ(NotNeeded(first, &needed), 0);
  }
  // A gather before its dispatch needs no gate: one that S0 depends on through it.
  EXPECT_EQ(NotNeeded(BuildParm({.trains = true}), &needed), 0);
  EXPECT_EQ(NotNeeded(BuildParm({.kind = ParmKind::kS1, .trains = true}), &needed), 0);
  EXPECT_EQ(NotNeeded(BuildParm({.kind = ParmKind::kS2, .parts = 4, .trains = true}), &needed), 0);
  for (const bool sums : {false, true}) EXPECT_EQ(NotNeeded(BuildSliced({.sums = sums, .trains = true}), &needed), 0);
}

}  // namespace
}  // namespace switchyard::pipeline
