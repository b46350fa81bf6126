#include "scheduler/pipeline/moe_schedule.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/pipeline/build_parm.h"
#include "scheduler/pipeline/build_sliced.h"
#include "scheduler/pipeline/schedule_timeline.h"

namespace switchyard::pipeline {
namespace {

using testing::HasSubstr;

// "G S0 H C0 R0", in launch order.
std::string Order(const std::vector<MicroOp>& ops) {
  std::vector<std::string> names;
  for (const MicroOp& op : ops) names.push_back(OpName(op));
  return absl::StrJoin(names, " ");
}

// The queue of the all-to-all class alone.
std::string CommOrder(std::vector<MicroOp> ops) {
  std::erase_if(ops, [](const MicroOp& op) { return !IsCommunicating(op.kind); });
  return Order(ops);
}

TEST(BuildExpertParallelTest, OneMicroBatch) {
  EXPECT_EQ(Order(BuildExpertParallel({.micro_batches = 1}).forward), "G S0 C0 R0");
  const MoeSchedule schedule = BuildExpertParallel({.micro_batches = 1, .shared_expert = true, .trains = true});
  EXPECT_EQ(Order(schedule.forward), "G S0 H C0 R0");
  EXPECT_EQ(Order(schedule.backward), "S0' H' C0' R0' W0' G'");
}

TEST(BuildExpertParallelTest, DispatchesAndCombinesAlternate) {
  EXPECT_EQ(Order(BuildExpertParallel({.micro_batches = 2, .shared_expert = true}).forward), "G S0 H S1 C0 R0 C1 R1");
  const MoeSchedule schedule = BuildExpertParallel({.micro_batches = 4, .trains = true});
  EXPECT_EQ(CommOrder(schedule.forward), "S0 S1 R0 S2 R1 S3 R2 R3");
  EXPECT_EQ(Order(schedule.backward), "S0' S1' C0' R0' W0' S2' C1' R1' W1' S3' C2' R2' W2' C3' R3' W3' G'");
}

TEST(BuildExpertParallelTest, AtMostTwoChunksAreInFlight) {
  for (int n = 1; n <= kMaxMicroBatches; ++n) {
    const MoeSchedule schedule = BuildExpertParallel({.micro_batches = n, .shared_expert = n % 2 == 0, .trains = true});
    EXPECT_TRUE(Validate(schedule).ok()) << Validate(schedule);
    for (const std::vector<MicroOp>* ops : {&schedule.forward, &schedule.backward}) {
      int in_flight = 0;
      for (const MicroOp& op : *ops) {
        if (op.kind == MicroOpKind::kDispatch) ++in_flight;
        EXPECT_LE(in_flight, 2);
        if (op.kind == MicroOpKind::kCombine) --in_flight;
      }
      EXPECT_EQ(in_flight, 0);
    }
  }
}

TEST(BuildExpertParallelTest, SlotsAreFewButForWhatBackwardReads) {
  for (const int n : {1, 2, 5}) {
    const int two = std::min(n, 2);
    const MoeSchedule inference = BuildExpertParallel({.micro_batches = n});
    EXPECT_EQ(inference.NumSlots(BufferKind::kInput), two);
    EXPECT_EQ(inference.NumSlots(BufferKind::kHidden), 1);
    EXPECT_EQ(inference.NumSlots(BufferKind::kOutput), two);
    EXPECT_EQ(inference.NumSlots(BufferKind::kInputGradient), 0);
    EXPECT_FALSE(inference.Keeps(BufferKind::kInput));
    const MoeSchedule trains = BuildExpertParallel({.micro_batches = n, .trains = true});
    EXPECT_EQ(trains.NumSlots(BufferKind::kInput), n);
    EXPECT_EQ(trains.NumSlots(BufferKind::kHidden), n);
    EXPECT_EQ(trains.NumSlots(BufferKind::kOutput), two);
    EXPECT_EQ(trains.NumSlots(BufferKind::kOutputGradient), two);
    EXPECT_EQ(trains.NumSlots(BufferKind::kHiddenGradient), 1);
    EXPECT_EQ(trains.NumSlots(BufferKind::kInputGradient), two);
    EXPECT_TRUE(trains.Keeps(BufferKind::kInput));
    EXPECT_TRUE(trains.Keeps(BufferKind::kHidden));
    EXPECT_FALSE(trains.Keeps(BufferKind::kOutput));
    EXPECT_FALSE(trains.Keeps(BufferKind::kOutputGradient));
  }
}

// MPMoE's S1 to S4.
TEST(BuildExpertParallelTest, RestoresWhatIsNotKept) {
  const auto built = [](InputRestore input, HiddenRestore hidden) {
    return BuildExpertParallel({.micro_batches = 2, .trains = true, .restore = {input, hidden}});
  };
  const MoeSchedule s1 = built(InputRestore::kOffload, HiddenRestore::kOffload);
  EXPECT_EQ(Order(s1.forward), "G S0 S1 Mi0 C0 Mh0 R0 Mi1 C1 Mh1 R1");
  EXPECT_EQ(Order(s1.backward), "Mh0 S0' Mi0 S1' Mi1 C0' Mh1 R0' W0' C1' R1' W1' G'");
  const MoeSchedule s2 = built(InputRestore::kResend, HiddenRestore::kOffload);
  EXPECT_EQ(Order(s2.forward), "G S0 S1 C0 Mh0 R0 C1 Mh1 R1");
  EXPECT_EQ(Order(s2.backward), "Mh0 S0' S0 S1' S1 C0' Mh1 R0' W0' C1' R1' W1' G'");
  const MoeSchedule s3 = built(InputRestore::kOffload, HiddenRestore::kRecompute);
  EXPECT_EQ(Order(s3.forward), "G S0 S1 Mi0 C0 R0 Mi1 C1 R1");
  EXPECT_EQ(Order(s3.backward), "S0' Mi0 S1' Mi1 A0 C0' R0' W0' A1 C1' R1' W1' G'");
  const MoeSchedule s4 = built(InputRestore::kResend, HiddenRestore::kRecompute);
  EXPECT_EQ(Order(s4.forward), "G S0 S1 C0 R0 C1 R1");
  EXPECT_EQ(Order(s4.backward), "S0' S0 S1' S1 A0 C0' R0' W0' A1 C1' R1' W1' G'");
  for (const MoeSchedule* schedule : {&s1, &s2, &s3, &s4}) {
    EXPECT_EQ(schedule->NumSlots(BufferKind::kInput), 2);
    EXPECT_EQ(schedule->NumSlots(BufferKind::kHidden), 1);
    EXPECT_FALSE(schedule->Keeps(BufferKind::kInput) || schedule->Keeps(BufferKind::kHidden));
  }
}

TEST(BuildExpertParallelTest, DispatchesInTurnWaitForTheOneBefore) {
  for (const bool in_turn : {false, true}) {
    const MoeSchedule schedule = BuildExpertParallel({.micro_batches = 4, .shared_expert = true, .in_turn = in_turn});
    EXPECT_TRUE(Validate(schedule).ok()) << Validate(schedule);
    EXPECT_EQ(Order(schedule.forward), "G S0 H S1 C0 R0 S2 C1 R1 S3 C2 R2 C3 R3");
    int before = -1;
    for (size_t i = 0; i < schedule.forward.size(); ++i) {
      const MicroOp& op = schedule.forward[i];
      if (op.kind != MicroOpKind::kDispatch) continue;
      EXPECT_EQ(std::count(op.deps.begin(), op.deps.end(), before), in_turn && before >= 0) << i;
      before = static_cast<int>(i);
    }
  }
}

TEST(BuildExpertParallelTest, AllDispatchesFirst) {
  const MoeSchedule schedule = BuildExpertParallel({.micro_batches = 3, .dispatch_first = true, .trains = true});
  EXPECT_EQ(Order(schedule.forward), "G S0 S1 S2 C0 R0 C1 R1 C2 R2");
  EXPECT_EQ(Order(schedule.backward), "S0' S1' S2' C0' R0' W0' C1' R1' W1' C2' R2' W2' G'");
  EXPECT_EQ(schedule.NumSlots(BufferKind::kOutputGradient), 3);
  EXPECT_EQ(schedule.NumSlots(BufferKind::kInputGradient), 3);
  EXPECT_EQ(BuildExpertParallel({.micro_batches = 3, .dispatch_first = true}).NumSlots(BufferKind::kInput), 3);
  const MoeSchedule faster = BuildExpertParallel(
      {.micro_batches = 2, .dispatch_first = true, .joint_gradients = true, .cut = Cut::kPeers, .trains = true});
  EXPECT_EQ(faster.name, "faster_moe");
  EXPECT_EQ(Order(faster.backward), "S0' S1' C0' W0' R0' C1' W1' R1' G'");
}

TEST(BuildParmTest, CollectivesOfShardsAndCopies) {
  const MoeSchedule baseline = BuildParm({.trains = true});
  EXPECT_EQ(Order(baseline.forward), "G AG0 S0 C0 AR0 R0");
  EXPECT_EQ(Order(baseline.backward), "AG0' S0' C0' AR0' R0' W0' G'");
  EXPECT_FALSE(baseline.splits_copies);
  const MoeSchedule s1 = BuildParm({.kind = ParmKind::kS1, .trains = true});
  EXPECT_EQ(Order(s1.forward), "G S0 C0 R0 AG0");
  EXPECT_EQ(Order(s1.backward), "S0' C0' R0' W0' G' AG0'");
  EXPECT_TRUE(s1.splits_copies);
  const MoeSchedule s2 = BuildParm({.kind = ParmKind::kS2, .parts = 3, .trains = true});
  EXPECT_EQ(Order(s2.forward), "G S0 C0 R0.0 R0.1 AG0.0 R0.2 AG0.1 AG0.2");
  EXPECT_EQ(Order(BuildParm({.kind = ParmKind::kS2}).forward), "G S0 C0 R0 AG0");
  // A part is gathered while the next one travels.
  EXPECT_EQ("\n" + Timeline(s2.forward), R"(
compute   G           C0
exchange        S0---       R0.0------- AG0.0------------------
exchange                          R0.1------------- AG0.1------
exchange                                      R0.2------- AG0.2
)");
}

TEST(BuildSlicedTest, NothingIsDispatched) {
  const MoeSchedule sum = BuildSliced({.sums = true, .trains = true});
  EXPECT_EQ(Order(sum.forward), "G S0 C0 R0 AR0");
  EXPECT_EQ(Order(sum.backward), "S0' C0' R0' G' AR0' W0'");
  EXPECT_EQ(sum.forward[1].group, Group::kSelf);
  const MoeSchedule gather = BuildSliced({.trains = true});
  EXPECT_EQ(Order(gather.forward), "G S0 C0 AG0 R0");
  EXPECT_EQ(Order(gather.backward), "S0' C0' AG0' W0' R0' G'");
}

TEST(TimelineTest, ShowsWhatRunsUnderWhat) {
  EXPECT_EQ("\n" + Timeline(BuildExpertParallel({.micro_batches = 3, .shared_expert = true}).forward), R"(
compute   G     H     C0       C1    C2
exchange     S0------    R0---------    R2
exchange           S1---------    R1------
exchange                    S2------
)");
}

TEST(TimelineTest, CopiesHaveLinesOfTheirOwn) {
  const MoeSchedule schedule = BuildExpertParallel(
      {.micro_batches = 2, .trains = true, .restore = {InputRestore::kOffload, HiddenRestore::kRecompute}});
  EXPECT_EQ("\n" + Timeline(schedule.backward), R"(
compute                   A0  C0'     W0' A1  C1'     W1' G'
exchange  S0'----------------     R0'--------------------
exchange          S1'------------------------     R1'----
copy          Mi0--------
copy                  Mi1----------------
)");
}

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

TEST(RowsOfChunkTest, CoversEveryRowOnce) {
  for (int64_t rows : {0, 1, 2, 5, 7, 64}) {
    for (int n = 1; n <= 9; ++n) {
      int64_t next = 0;
      for (int chunk = 0; chunk < n; ++chunk) {
        const ChunkRange range = RowsOfChunk(rows, chunk, n);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.count, rows / n);
        EXPECT_LE(range.count, rows / n + 1);
        next += range.count;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

}  // namespace
}  // namespace switchyard::pipeline
