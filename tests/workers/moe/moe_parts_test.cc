// The parts of the MoE layer by themselves: layout of experts, dispatch messages, the order in which a schedule runs;
// and what happens to the group when one rank's layer fails.
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/moe/moe_run.h"
#include "workers/moe/dispatch/dispatch_message.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/moe/layer/schedule_executor.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using test::Backend;
using test::ExchangeKind;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ExpertLayoutTest, ContiguousOfAnyCounts) {
  for (int experts = 1; experts <= 20; ++experts) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const ExpertLayout layout = ExpertLayout::Contiguous(experts, ranks);
      const int per_rank = (experts + ranks - 1) / ranks;
      int next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_LE(static_cast<int>(layout.Residents(rank).size()), per_rank);
        for (int slot = 0; slot < static_cast<int>(layout.Residents(rank).size()); ++slot, ++next) {
          EXPECT_EQ(layout.Residents(rank)[slot], next);
          EXPECT_EQ(layout.PlaceOf(next, 0, 0), (ExpertLayout::Place{rank, slot}));
        }
      }
      EXPECT_EQ(next, experts);
    }
  }
  // Nobody has nothing to do where there are experts enough; of fewer, the last ranks have none.
  const ExpertLayout five = ExpertLayout::Contiguous(5, 4);
  EXPECT_EQ(five.Residents(0).size(), 2u);
  EXPECT_EQ(five.Residents(3), absl::MakeConstSpan({4}));
  EXPECT_TRUE(ExpertLayout::Contiguous(3, 4).Residents(3).empty());
}

TEST(ExpertLayoutTest, ReplicasAreNearFirstThenTakeTurns) {
  const std::vector<std::vector<int32_t>> residents = {{0, 1}, {1, 2}, {2, 0}, {}};
  const ExpertLayout layout = ExpertLayout::FromResidents(3, residents);
  EXPECT_EQ(layout.Places(1).size(), 2u);
  EXPECT_EQ(layout.PlaceOf(1, 0, 5), (ExpertLayout::Place{0, 1}));
  EXPECT_EQ(layout.PlaceOf(1, 1, 5), (ExpertLayout::Place{1, 0}));
  EXPECT_NE(layout.PlaceOf(1, 3, 0), layout.PlaceOf(1, 3, 1));
  EXPECT_EQ(layout.PlaceOf(1, 3, 0), layout.PlaceOf(1, 3, 2));
}

TEST(RowScratchTest, TakesWhatTheLargestRequestNeeds) {
  RowScratch scratch;
  const auto take = [&](int64_t rows) {
    scratch.Rows(rows, 100, DType::kBf16);
    return scratch.bytes();
  };
  EXPECT_EQ(take(77), 77 * 200) << "the first is exact";
  EXPECT_EQ(take(70), 77 * 200);
  EXPECT_EQ(take(81), 16256) << "16200 rounded up to a multiple of 8192 / 64";
  EXPECT_EQ(take(1), 16256);
  // Row by row to twice as many and more: never a 64th above the largest, and not an allocation for every row.
  int64_t before = take(1000);
  int allocations = 0;
  for (int64_t rows = 1001; rows <= 3000; ++rows) {
    const int64_t bytes = take(rows);
    EXPECT_GE(bytes, rows * 200);
    EXPECT_LE(bytes, rows * 200 + rows * 200 / 64);
    if (std::exchange(before, bytes) != bytes) ++allocations;
  }
  EXPECT_LE(allocations, 2 * 64);
}

TEST(DispatchMessageTest, WhatIsWrittenIsRead) {
  auto pool = comm::MessagePool::Create();
  const DispatchMessageLayout layout(2, 3, {.row_bytes = 32});
  EXPECT_EQ(layout.rows_offset % 64, 0);
  const comm::Message message = pool->Take(layout.bytes);
  const DispatchMessageView writing = BeginDispatchMessage(message, 2, 3, {.row_bytes = 32});
  for (int i = 0; i < 3; ++i) {
    writing.pair_row[i] = i / 2;
    writing.pair_slot[i] = i;
  }
  std::memset(writing.rows, 7, 64);
  const auto view = ReadDispatchMessage(message, 3, {.row_bytes = 32});
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->num_rows, 2);
  EXPECT_THAT(view->pair_row, ElementsAre(0, 0, 1));
  EXPECT_EQ(view->rows[63], 7);

  // Whatever a peer sends, nothing outside is reachable.
  EXPECT_EQ(ReadDispatchMessage(message, 2, {.row_bytes = 32}).status().code(),
            absl::StatusCode::kInternal);  // slot 2 of 2
  EXPECT_EQ(ReadDispatchMessage(message, 3, {.row_bytes = 64}).status().code(),
            absl::StatusCode::kInternal);  // another width
  writing.pair_row[1] = -1;
  EXPECT_EQ(ReadDispatchMessage(message, 3, {.row_bytes = 32}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReadDispatchMessage(pool->Take(4), 3, {.row_bytes = 32}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReadDispatchMessage(comm::Message(), 3, {.row_bytes = 32})->num_rows, 0);
}

TEST(DispatchMessageTest, WeightsTravelBetweenPairsAndRows) {
  auto pool = comm::MessagePool::Create();
  const DispatchMessageSizes sizes = {.row_bytes = 32, .weight_bytes = 8};
  const DispatchMessageLayout layout(1, 3, sizes);
  EXPECT_EQ(layout.weights_offset % 8, 0);
  EXPECT_GE(layout.rows_offset, layout.weights_offset + 24);
  const comm::Message message = pool->Take(layout.bytes);
  const DispatchMessageView writing = BeginDispatchMessage(message, 1, 3, sizes);
  ASSERT_EQ(writing.weights.size(), 24u);
  for (int i = 0; i < 3; ++i) writing.pair_row[i] = writing.pair_slot[i] = 0;
  std::memset(writing.weights.data(), 5, 24);
  std::memset(writing.rows, 7, 32);
  const auto view = ReadDispatchMessage(message, 1, sizes);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->weights[23], 5);
  EXPECT_EQ(view->rows[0], 7);
  EXPECT_EQ(ReadDispatchMessage(message, 1, {.row_bytes = 32, .weight_bytes = 32}).status().code(),
            absl::StatusCode::kInternal);
}

// Records the calls of a runner and of a watch.
class Recorder : public MicroOpRunner, public AllToAllWatch {
 public:
  void Imminent() override { log.push_back("imminent"); }
  absl::Status Begin() override {
    log.push_back("begin");
    return may_begin;
  }
  void End() override { log.push_back("end"); }
  void LayerEnd() override { log.push_back("layer end"); }
  absl::Status Start(const pipeline::MicroOp& op) override { return Note("", op); }
  absl::Status Finish(const pipeline::MicroOp& op) override { return Note("/", op); }
  absl::Status may_begin;
  int fail_at = -1;
  std::vector<std::string> log;

 private:
  absl::Status Note(const char* mark, const pipeline::MicroOp& op) {
    if (static_cast<int>(log.size()) == fail_at) return absl::UnavailableError("here");
    log.push_back(absl::StrCat(
        mark, op.experts == pipeline::ExpertSet::kShared ? "shared" : pipeline::MicroOpKindName(op.kind), op.chunk));
    return absl::OkStatus();
  }
};

TEST(RunSchedule, FinishesAnExchangeWhenItsRowsAreNeeded) {
  Recorder one;
  ASSERT_TRUE(
      RunSchedule(pipeline::BuildExpertParallel({.micro_batches = 1, .shared_expert = true}).forward, &one).ok());
  EXPECT_THAT(one.log, ElementsAre("gate0", "dispatch0", "shared0", "/dispatch0", "expert0", "combine0", "/combine0"));
  Recorder two;
  ASSERT_TRUE(RunSchedule(pipeline::BuildExpertParallel({.micro_batches = 2}).forward, &two).ok());
  EXPECT_THAT(two.log, ElementsAre("gate0", "dispatch0", "dispatch1", "/dispatch0", "expert0", "combine0", "/dispatch1",
                                   "expert1", "combine1", "/combine0", "/combine1"));
}

TEST(RunSchedule, StopsAtTheFirstError) {
  Recorder recorder;
  recorder.fail_at = 3;
  EXPECT_EQ(RunSchedule(pipeline::BuildExpertParallel({.micro_batches = 2}).forward, &recorder),
            absl::UnavailableError("here"));
  EXPECT_EQ(recorder.log.size(), 3u);
}

TEST(RunSchedule, ReportsTheWatchOfAllToAlls) {
  Recorder recorder;
  ASSERT_TRUE(RunSchedule(pipeline::BuildExpertParallel({.micro_batches = 2}).forward, &recorder, &recorder).ok());
  EXPECT_THAT(recorder.log, ElementsAre("gate0", "begin", "dispatch0", "begin", "dispatch1", "/dispatch0", "end",
                                        "expert0", "begin", "combine0", "/dispatch1", "end", "expert1", "begin",
                                        "combine1", "/combine0", "end", "/combine1", "end", "layer end"));
  // The router's gradients come behind the layer's last all-to-all.
  recorder.log.clear();
  ASSERT_TRUE(RunSchedule(pipeline::BuildExpertParallel({.trains = true}).backward, &recorder, &recorder).ok());
  EXPECT_THAT(recorder.log, ElementsAre("begin", "dispatch0", "/dispatch0", "end", "expert0", "begin", "combine0",
                                        "weights0", "/combine0", "end", "layer end", "gate0"));
  recorder.log.clear();
  recorder.may_begin = absl::UnavailableError("not now");
  EXPECT_EQ(RunSchedule(pipeline::BuildExpertParallel({}).forward, &recorder, &recorder), recorder.may_begin);
  EXPECT_THAT(recorder.log, ElementsAre("gate0", "begin"));
}

const std::vector<int> kFourLayers = {0, 1, 2, 3};

// One rank's part of layers over `comm`.
absl::Status RunOne(comm::Communicator* comm, const test::MoeTestModel& model, const pipeline::MoeSchedule& schedule,
                    const TensorView& x, const std::vector<int>& layers = kFourLayers,
                    test::ExchangeKind kind = test::ExchangeKind::kHost) {
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  const ExpertLayout layout = ExpertLayout::Contiguous(model.shape().num_experts, comm->world());
  const MoeLayer layer = model.LayerOf(stream, layout, comm->rank());
  MoeExecutor executor(test::MakerOf(kind));
  const Tensor residual = model.RandomResidual(x.dim(0), 2);
  MoeStats stats;
  const MoeContext step{.stream = &stream,
                        .comm = comm,
                        .layout = &layout,
                        .schedule = &schedule,
                        .deadline = test::Soon(),
                        .stats = &stats,
                        .exchange = test::ModeOf(kind),
                        .max_rows = 8};
  for (const int moe_layer : layers) RETURN_IF_ERROR(executor.Run(step, {.index = moe_layer}, layer, x, residual));
  return absl::OkStatus();
}

class MoeFaultTest : public testing::TestWithParam<std::tuple<test::Backend, test::ExchangeKind>> {
 protected:
  test::Backend backend() const { return std::get<0>(GetParam()); }
  test::ExchangeKind kind() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Backends, MoeFaultTest,
                         testing::Combine(testing::Values(test::Backend::kLocal, test::Backend::kSocket),
                                          testing::ValuesIn(test::kExchangeKinds)),
                         [](const auto& i) {
                           return absl::StrCat(test::BackendName(std::get<0>(i.param)), "_",
                                               test::ExchangeName(std::get<1>(i.param)));
                         });

TEST_P(MoeFaultTest, ARankThatFailsInAnyExchangeEndsTheOthersStep) {
  const test::MoeTestModel model({});
  const Tensor x = model.RandomRows(6, 1);
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.micro_batches = 2});
  for (const int at : {0, 1, 2, 3, 7}) {
    auto ranks = test::MakeGroup(backend(), 3);
    ranks[1] = comm::MakeFaultyCommunicator(std::move(ranks[1]), {comm::CommFault::Kind::kFail, at, {}});
    const auto statuses = test::RunRanks(
        &ranks, [&](comm::Communicator* comm) { return RunOne(comm, model, schedule, x, kFourLayers, kind()); });
    for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
}

TEST_P(MoeFaultTest, AWrongShapeOnOneRankFreesTheOthers) {
  const test::MoeTestModel model({});
  const Tensor x = model.RandomRows(6, 1);
  const Tensor narrow(DType::kF32, {6, 32});
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({});
  auto ranks = test::MakeGroup(backend(), 2);
  const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) {
    return RunOne(comm, model, schedule, comm->rank() == 0 ? x : narrow, kFourLayers, kind());
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("x is fp32 [6, 32] cpu, wants fp32 [6, 64]"));
}

// Two layers of one shape: what a rank receives fits, but is of the other layer.
TEST_P(MoeFaultTest, AnotherOrderOfLayersIsNamed) {
  const test::MoeTestModel model({});
  const Tensor x = model.RandomRows(6, 1);
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({});
  auto ranks = test::MakeGroup(backend(), 2);
  const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) {
    return RunOne(comm, model, schedule, x, comm->rank() == 0 ? std::vector<int>{7, 8} : std::vector<int>{8, 7},
                  kind());
  });
  EXPECT_FALSE(statuses[0].ok() || statuses[1].ok());
  const absl::Status& found = statuses[0].code() == absl::StatusCode::kInternal ? statuses[0] : statuses[1];
  EXPECT_THAT(std::string(found.message()), AllOf(HasSubstr("collectives differ"), HasSubstr("dispatch of MoE layer 7"),
                                                  HasSubstr("dispatch of MoE layer 8")));
}

// The same for two chunks of one shape.
TEST_P(MoeFaultTest, AnotherOrderOfChunksIsNamed) {
  const test::MoeTestModel model({});
  const Tensor x = model.RandomRows(6, 1);
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.micro_batches = 2});
  pipeline::MoeSchedule swapped = schedule;
  for (pipeline::MicroOp& op : swapped.forward) {
    if (op.num_chunks == 2) op.chunk = 1 - op.chunk;
  }
  auto ranks = test::MakeGroup(backend(), 2);
  const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) {
    return RunOne(comm, model, comm->rank() == 0 ? schedule : swapped, x, {5}, kind());
  });
  EXPECT_FALSE(statuses[0].ok() || statuses[1].ok());
  const absl::Status& found = statuses[0].code() == absl::StatusCode::kInternal ? statuses[0] : statuses[1];
  EXPECT_THAT(std::string(found.message()), AllOf(HasSubstr("collectives differ"), HasSubstr("dispatch of MoE layer 5"),
                                                  HasSubstr("dispatch of MoE layer 5, part 1")));
}

// A rank that cuts its rows differently launches other exchanges: that ends in an error on both, not in a hang.
TEST_P(MoeFaultTest, DifferentMicroBatchesAreNoHang) {
  const test::MoeTestModel model({});
  const Tensor x = model.RandomRows(6, 1);
  const pipeline::MoeSchedule one = pipeline::BuildExpertParallel({.micro_batches = 1});
  const pipeline::MoeSchedule two = pipeline::BuildExpertParallel({.micro_batches = 2});
  auto ranks = test::MakeGroup(backend(), 2);
  const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) -> absl::Status {
    const absl::Status status = RunOne(comm, model, comm->rank() == 0 ? one : two, x, {0}, kind());
    comm->Abort("done");  // as a worker does whose step failed
    return status;
  });
  EXPECT_FALSE(statuses[0].ok() && statuses[1].ok());
}

TEST(MoeLayerErrorsTest, SaysWhatDoesNotFit) {
  const test::MoeTestModel plain({}), shared({.shared_ffn = 16});
  const Tensor x = plain.RandomRows(3, 1);
  auto ranks = test::MakeGroup(test::Backend::kLocal, 1);
  const pipeline::MoeSchedule with_shared = pipeline::BuildExpertParallel({.shared_expert = true});
  EXPECT_THAT(std::string(RunOne(ranks[0].get(), plain, with_shared, x).message()),
              HasSubstr("has a shared expert, the layer lacks one"));
  EXPECT_THAT(std::string(RunOne(ranks[0].get(), shared, pipeline::BuildExpertParallel({}), x).message()),
              HasSubstr("lacks a shared expert, the layer has one"));
  EXPECT_TRUE(
      RunOne(ranks[0].get(), plain, pipeline::BuildExpertParallel({}), x).ok());  // and the next step is a good one
}

TEST(TokenDispatcherTest, RefusesBadIdsAndBounds) {
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  const ExpertLayout layout = ExpertLayout::Contiguous(4, 2);
  int32_t ids[] = {0, 4};
  float rows[8] = {};
  const TensorView idx(ids, DType::kI32, {1, 2}), x(rows, DType::kF32, {1, 8});
  for (const test::ExchangeKind kind : test::kExchangeKinds) {
    auto ranks = test::MakeGroup(test::Backend::kLocal, 2);
    MoeStats stats;
    MoeContext context{.stream = &stream,
                       .comm = ranks[0].get(),
                       .deadline = test::Soon(),
                       .stats = &stats,
                       .exchange = test::ModeOf(kind),
                       .max_rows = 1};
    const LayerContext layer{.x = x, .topk_idx = idx, .layout = &layout};
    const auto exchange = test::MakerOf(kind)(Device::Cpu(), context.exchange);
    ids[1] = 4;
    EXPECT_THAT(std::string(exchange->StartDispatch(context, layer).message()), HasSubstr("topk_idx[0, 1] = 4"));
    ids[1] = -1;  // dropped: fine
    EXPECT_TRUE(exchange->StartDispatch(context, layer).ok());
    exchange->Drop();
    context.exchange = ExchangeMode::kPadded;
    context.max_rows = 0;
    EXPECT_EQ(exchange->StartDispatch(context, layer).code(), kind == test::ExchangeKind::kHost
                                                                  ? absl::StatusCode::kUnimplemented
                                                                  : absl::StatusCode::kInvalidArgument);
  }
}

TEST(TokenDispatcherTest, ARowMoreThanTheBoundIsAnError) {
  const test::MoeTestModel model({});
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.micro_batches = 2});
  for (const int64_t num_rows : {8, 9}) {  // of max_rows = 8
    auto ranks = test::MakeGroup(test::Backend::kLocal, 2);
    const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) {
      return RunOne(comm, model, schedule, model.RandomRows(comm->rank() == 0 ? num_rows : 1, 1), {0},
                    test::ExchangeKind::kPadded);
    });
    EXPECT_EQ(statuses[0].code(), num_rows == 8 ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(statuses[1].code(), num_rows == 8 ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(statuses[0].message()), HasSubstr(num_rows == 8 ? "" : "5 rows where max_rows is 4"));
  }
}

TEST(TokenDispatcherTest, OneOfADeviceNeedNotHaveItsExpertsInOrder) {
  const test::MoeShape shape{.num_experts = 5, .top_k = 2};
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(9, 3), residual = model.RandomResidual(9, 4);
  const auto in_order = test::RunMoe(model, {.layout = ExpertLayout::Contiguous(5, 1), .rank_rows = {9}}, x, residual);
  const std::vector<std::vector<int32_t>> shuffled = {{3, 0, 4, 2, 1}};
  for (const test::ExchangeKind kind : test::kExchangeKinds) {
    const auto result = test::RunMoe(
        model, {.layout = ExpertLayout::FromResidents(5, shuffled), .rank_rows = {9}, .exchange = kind}, x, residual);
    ASSERT_TRUE(result.ok() && in_order.ok()) << result.status();
    EXPECT_TRUE(result->residual == in_order->residual);
  }
}

}  // namespace
}  // namespace switchyard::moe
