// The late ranks of a device's collective, case by case; and the states of an NCCL communicator.
#include "workers/comm/group/late_ranks.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/comm/nccl/nccl_state.h"

namespace switchyard::comm {
namespace {

const OpKey kExchange{.op = CommOp::kAllToAllSized, .comm_class = CommClass::kAllToAll, .sequence = 4};
const OpKey kSum{.op = CommOp::kAllReduceSum, .comm_class = CommClass::kAllReduce, .sequence = 2, .bytes = 64};

struct Row {
  const char* expected;
  PeerReport peer;
};

TEST(LateRanksTest, OneRow) {
  const PeerReport mine{
      .launched = 7, .completed = 5, .last = kSum, .pending = kExchange, .send_bytes = {0, 8}, .recv_bytes = {0, 6}};
  const Row table[] = {
      {"rank 1 has not launched it (0 launched)", {}},
      {"rank 1 has not launched it (5 launched, the last was all_reduce_sum #2 of class all_reduce (64 bytes))",
       {.launched = 5, .completed = 5, .last = kSum, .pending = {}}},
      {"rank 1 is still in all_reduce_sum #2 of class all_reduce (64 bytes), 2 before it",
       {.launched = 6, .completed = 3, .last = kExchange, .pending = kSum}},
      {"rank 1 launched all_reduce_sum #2 of class all_reduce (64 bytes) instead",
       {.launched = 6, .completed = 5, .last = kSum, .pending = kSum}},
      {"rank 0 sends rank 1 8 bytes, which expects 7; rank 1 sends rank 0 5 bytes, which expects 6",
       {.launched = 6,
        .completed = 5,
        .last = kExchange,
        .pending = kExchange,
        .send_bytes = {5, 0},
        .recv_bytes = {7, 0}}},
      {"every rank has launched it; a device or a link does not get on; rank 1 waits for it, too",
       {.launched = 6,
        .completed = 5,
        .last = kExchange,
        .pending = kExchange,
        .send_bytes = {6, 0},
        .recv_bytes = {8, 0}}},
      {"every rank has launched it; a device or a link does not get on; rank 1 has finished it",
       {.launched = 6, .completed = 6, .last = kExchange, .pending = {}}},
  };
  for (const Row& row : table) EXPECT_EQ(WhoIsLate({mine, row.peer}, 0), row.expected);
}

TEST(LateRanksTest, ThoseAtFaultComeFirst) {
  const PeerReport waits{.launched = 1, .completed = 0, .last = kSum, .pending = kSum};
  EXPECT_EQ(WhoIsLate({waits, waits, {}}, 1), "rank 2 has not launched it (0 launched); rank 0 waits for it, too");
}

TEST(NcclStateTest, EveryStateButTheLastTwoHasAWayOnAndErrorsAreStickyFirst) {
  for (int from = 0; from < kNumNcclStates; ++from) {
    int ways = 0;
    for (int to = 0; to < kNumNcclStates; ++to) ways += kMayMove[from][to];
    EXPECT_EQ(ways, from == 0 || from == 1 ? 2 : from == 2 ? 1 : 0) << from;
  }
  NcclState state = NcclState::kForming;
  MoveTo(&state, NcclState::kReady);
  MoveTo(&state, NcclState::kFailed);
  MoveTo(&state, NcclState::kAborted);
  EXPECT_DEATH(MoveTo(&state, NcclState::kReady), "MayMove");
}

}  // namespace
}  // namespace switchyard::comm
