// A layer whose backward restores what forward had, by copies, by sending rows again and by computing again: the same
// bits as one that keeps all, on any number of ranks.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/moe/late_offload.h"
#include "tests/workers/moe/moe_training.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using pipeline::HiddenRestore;
using pipeline::InputRestore;
using pipeline::RestoreStrategy;
using test::MoeSpread;
using testing::HasSubstr;

constexpr int64_t kRows = 17;

std::vector<RestoreStrategy> AllStrategies() {
  std::vector<RestoreStrategy> all;
  for (const InputRestore input : {InputRestore::kKeep, InputRestore::kOffload, InputRestore::kResend}) {
    for (const HiddenRestore hidden : {HiddenRestore::kKeep, HiddenRestore::kOffload, HiddenRestore::kRecompute}) {
      if (input != InputRestore::kKeep || hidden != HiddenRestore::kKeep) all.push_back({input, hidden});
    }
  }
  return all;
}

std::string NameOf(const RestoreStrategy& restore) {
  static constexpr const char* kInputs[] = {"keep", "offload", "resend"};
  static constexpr const char* kHidden[] = {"keep", "offload", "recompute"};
  return absl::StrCat(kInputs[static_cast<int>(restore.input)], "_", kHidden[static_cast<int>(restore.hidden)]);
}

class MoeRestoreTest : public testing::TestWithParam<MoeSpread> {};

INSTANTIATE_TEST_SUITE_P(Spreads, MoeRestoreTest,
                         testing::Values(MoeSpread{"one", {17}, 1}, MoeSpread{"chunks", {17}, 5},
                                         MoeSpread{"two", {9, 8}, 2}, MoeSpread{"empty_rank", {0, 17}, 3},
                                         MoeSpread{"four", {1, 2, 5, 9}, 8},
                                         MoeSpread{"eight", {2, 0, 3, 1, 4, 2, 0, 5}, 4},
                                         MoeSpread{"two_sockets", {8, 9}, 4, test::Backend::kSocket}),
                         [](const auto& i) { return i.param.name; });

void ExpectSame(const reference::MoeMatrices& a, const reference::MoeMatrices& b) {
  EXPECT_TRUE(a.router == b.router);
  EXPECT_TRUE(a.gate_up == b.gate_up);
  EXPECT_TRUE(a.down == b.down);
  EXPECT_TRUE(a.shared_gate_up == b.shared_gate_up);
  EXPECT_TRUE(a.shared_down == b.shared_down);
  EXPECT_TRUE(a.shared_gate == b.shared_gate);
}

TEST_P(MoeRestoreTest, NeitherStrategyNorOrderChangesABit) {
  RowScratch::Spoil();
  for (const test::MoeShape& shape :
       {test::MoeShape{.num_experts = 8, .top_k = 3, .shared_ffn = 16, .dtype = DType::kBf16},
        test::MoeShape{.num_experts = 8, .top_k = 1, .dtype = DType::kF64}}) {
    const test::MoeTestModel model(shape);
    const Tensor x = model.RandomRows(kRows, 6), residual = model.RandomResidual(kRows, 7);
    const Tensor dy = model.RandomResidual(kRows, 8);
    test::MoeTrainingRun training;
    training.run = GetParam().RunOf(shape.num_experts);
    constexpr int kSteps = 2;
    const auto kept = test::TrainMoe(model, training, x, residual, dy, kSteps);
    ASSERT_TRUE(kept.ok()) << kept.status();
    for (const RestoreStrategy& restore : AllStrategies()) {
      SCOPED_TRACE(NameOf(restore));
      training.restore = restore;
      const auto restored = test::TrainMoe(model, training, x, residual, dy, kSteps);
      ASSERT_TRUE(restored.ok()) << restored.status();
      EXPECT_TRUE(restored->residual == kept->residual);
      EXPECT_TRUE(restored->d_x == kept->d_x);
      ExpectSame(restored->gradients, kept->gradients);
      for (const uint64_t ledger : restored->ledgers) EXPECT_EQ(ledger, restored->ledgers[0]);
      EXPECT_EQ(restored->ledgers[0] == kept->ledgers[0],
                restore.input != InputRestore::kResend || GetParam().rank_rows.size() == 1);
    }
    training.restore = {};
    for (const auto& [dispatch_first, joint_gradients] : {std::pair(true, false), {false, true}, {true, true}}) {
      SCOPED_TRACE(absl::StrCat(dispatch_first ? "all dispatches first" : "", joint_gradients ? " both at once" : ""));
      training.dispatch_first = dispatch_first;
      training.joint_gradients = joint_gradients;
      const auto ordered = test::TrainMoe(model, training, x, residual, dy, kSteps);
      ASSERT_TRUE(ordered.ok()) << ordered.status();
      EXPECT_TRUE(ordered->residual == kept->residual);
      EXPECT_TRUE(ordered->d_x == kept->d_x);
      ExpectSame(ordered->gradients, kept->gradients);
      for (const uint64_t ledger : ordered->ledgers) EXPECT_EQ(ledger, ordered->ledgers[0]);
    }
    training.dispatch_first = training.joint_gradients = false;
  }
}

// A layer on one rank whose copies can fail.
class MoeOffloadTest : public testing::Test {
 protected:
  void Use(const RestoreStrategy& restore) {
    schedule_ = pipeline::BuildExpertParallel({.micro_batches = 2, .trains = true, .restore = restore});
  }
  absl::Status Forward() { return executor_.Run(step_, at_, layer_, x_, residual_); }
  absl::Status Backward() {
    return backward_.Run(step_, at_, layer_, trained_.weights(),
                         {.x = x_, .d_residual = residual_, .router_loss = {}, .d_x = d_x_});
  }

  const test::MoeTestModel model_{test::MoeShape{}};
  ThreadPool pool_{1, false};
  const Stream stream_ = Stream::OnCpu(&pool_);
  const ExpertLayout layout_ = ExpertLayout::Contiguous(8, 1);
  std::vector<std::unique_ptr<comm::Communicator>> ranks_ = test::MakeGroup(test::Backend::kLocal, 1);
  pipeline::MoeSchedule schedule_;
  const MoeLayer layer_ = model_.LayerOf(stream_, layout_, 0);
  const test::MoeTrained trained_{model_, stream_, layout_, 0};
  const Tensor x_ = model_.RandomRows(6, 1), residual_ = model_.RandomResidual(6, 2);
  const Tensor d_x_{DType::kF32, {6, 64}};
  test::LateOffload offload_;
  MoeSaved saved_;
  MoeStats stats_;
  MoeContext step_ = {.stream = &stream_,
                      .comm = ranks_[0].get(),
                      .layout = &layout_,
                      .schedule = &schedule_,
                      .deadline = test::Soon(),
                      .stats = &stats_,
                      .offload = &offload_};
  const LayerContext at_ = {.saved = &saved_};
  MoeExecutor executor_;
  MoeBackward backward_;
};

TEST_F(MoeOffloadTest, AFailedCopyEndsThePassAndNoneIsLeftUnderWay) {
  Use({InputRestore::kKeep, HiddenRestore::kOffload});
  offload_.FailAfter(1);
  EXPECT_EQ(Forward(), absl::UnavailableError("the disk"));
  EXPECT_TRUE(offload_.idle());
  EXPECT_EQ(Backward().code(), absl::StatusCode::kFailedPrecondition);  // nothing is saved
  ASSERT_TRUE(Forward().ok());
  EXPECT_EQ(offload_.num_saves(), 1 + 2 * 2);
  offload_.FailAfter(2);
  EXPECT_EQ(Backward(), absl::UnavailableError("the disk"));
  EXPECT_TRUE(offload_.idle());
  ASSERT_TRUE(Forward().ok());
  EXPECT_TRUE(Backward().ok());
}

TEST_F(MoeOffloadTest, OwnRowsAreNotCopied) {
  Use({InputRestore::kOffload, HiddenRestore::kKeep});
  ASSERT_TRUE(Forward().ok());
  EXPECT_EQ(offload_.num_saves(), 0);
  EXPECT_TRUE(Backward().ok());
}

TEST_F(MoeOffloadTest, APassThatSavesNothingCopiesNothing) {
  Use({InputRestore::kOffload, HiddenRestore::kOffload});
  ASSERT_TRUE(executor_.Run(step_, {}, layer_, x_, residual_).ok());
  EXPECT_EQ(offload_.num_saves(), 0);
  EXPECT_TRUE(offload_.idle());
}

TEST_F(MoeOffloadTest, BackwardIsOfTheProgramThatForwardRan) {
  Use({InputRestore::kKeep, HiddenRestore::kRecompute});
  ASSERT_TRUE(Forward().ok());
  Use({});
  const absl::Status status = Backward();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("keeps other rows than that of the forward pass"));
}

TEST_F(MoeOffloadTest, SaysThatThereIsNowhereToCopyTo) {
  Use({InputRestore::kResend, HiddenRestore::kOffload});
  step_.offload = nullptr;
  const absl::Status status = Forward();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("offloads activations, and there is nowhere to"));
}

}  // namespace
}  // namespace switchyard::moe
