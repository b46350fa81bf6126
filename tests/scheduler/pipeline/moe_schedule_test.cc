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
  EXPECT_EQ(baseline.copies, CopySplit::kNone);
  const MoeSchedule s1 = BuildParm({.kind = ParmKind::kS1, .trains = true});
  EXPECT_EQ(Order(s1.forward), "G S0 C0 R0 AG0");
  EXPECT_EQ(Order(s1.backward), "S0' C0' R0' W0' G' AG0'");
  EXPECT_EQ(s1.copies, CopySplit::kBeforeGate);
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

TEST(PeersTest, EachPlaceIsInOnePart) {
  for (int size = 1; size <= 9; ++size) {
    for (int parts = 1; parts <= 11; ++parts) {
      for (int from = 0; from < size; ++from) {
        std::vector<int64_t> count(static_cast<size_t>(parts), 0);
        for (int to = 0; to < size; ++to) {
          const int part = PartOfPeers(from, to, size, parts);
          const ChunkRange distances = PeersOfPart(size, part, parts);
          const int distance = (to - from + size) % size;
          EXPECT_TRUE(distances.begin <= distance && distance < distances.begin + distances.count);
          ++count[static_cast<size_t>(part)];
        }
        for (int part = 0; part < parts; ++part)
          EXPECT_EQ(count[static_cast<size_t>(part)], PeersOfPart(size, part, parts).count);
      }
    }
  }
}

TEST(PeersTest, ChunksAreBlocksBehindOnesOwn) {
  // Of 8 places in blocks of 2, place 5 (block 2) sends to blocks 2, 3, 0, 1.
  std::vector<int> chunks;
  for (int to = 0; to < 8; ++to) chunks.push_back(ChunkOfPeers(5, to, 8, 4));
  EXPECT_EQ(chunks, (std::vector<int>{2, 2, 3, 3, 0, 0, 1, 1}));
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
