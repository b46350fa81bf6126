// The MoE layer on several devices: the bits of one device, and as a graph that is recorded once and replayed.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/offload/policies/lru_policy.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/devices/test_device.h"
#include "tests/workers/comm/nccl_test_util.h"
#include "tests/workers/moe/moe_run.h"
#include "workers/tensor/copy.h"

namespace switchyard::moe {
namespace {

using test::DeviceMemory;
using test::ExchangeKind;
using test::MoeResult;
using test::MoeRun;
using test::MoeShape;
using test::MoeTestModel;

test::MoeResult ResultFor(const test::MoeRun& run, const TensorView& residual) {
  test::MoeResult result;
  result.residual.assign(static_cast<const char*>(residual.raw()),
                         static_cast<size_t>(residual.NumElements() * DTypeBytes(residual.dtype())));
  result.stats.resize(run.rank_rows.size());
  result.expert_counts.resize(run.rank_rows.size());
  result.copies.resize(run.rank_rows.size());
  result.waves.resize(run.rank_rows.size());
  return result;
}

// On one device.  model: on the stream's.
test::MoeResult RunAlone(const Stream& stream, const test::MoeTestModel& model, const TensorView& x,
                         const TensorView& residual) {
  const test::MoeRun run{.layout = ExpertLayout::Contiguous(model.shape().num_experts, 1),
                         .rank_rows = {x.dim(0)},
                         .exchange = test::ExchangeKind::kDeviceExact};
  test::MoeResult result = ResultFor(run, residual);
  auto ranks = test::MakeGroup(test::Backend::kLocal, 1);
  const absl::Status status = test::RunMoeRank(model, run, ranks[0].get(), stream, x, 1, &result);
  EXPECT_TRUE(status.ok()) << status;
  return result;
}

struct Case {
  const char* name;
  test::MoeShape shape;
  std::vector<std::vector<int32_t>> residents;
  std::vector<int64_t> rank_rows;
  int micro_batches = 1;
};

std::vector<Case> Cases() {
  const test::MoeShape small{.hidden = 32, .ffn = 16, .num_experts = 5, .top_k = 2, .dtype = DType::kBf16};
  test::MoeShape shared = small;
  shared.shared_ffn = 16;
  return {{"two", small, {{0, 1, 2}, {3, 4}}, {5, 3}},
          {"chunks", shared, {{0, 1, 2}, {3, 4}}, {4, 5}, 2},
          {"replicas", small, {{2, 0, 1}, {4, 2}, {3, 1}}, {3, 4, 2}},
          {"no_experts_no_rows", small, {{0, 1}, {}, {2, 3, 4}}, {3, 4, 0}}};
}

Case Alone() {
  const test::MoeShape shape{
      .hidden = 32, .ffn = 16, .num_experts = 5, .top_k = 2, .shared_ffn = 16, .dtype = DType::kBf16};
  return {"alone", shape, {{0, 1, 2, 3, 4}}, {7}};
}

class MoeDeviceTest : public testing::TestWithParam<std::tuple<Case, test::ExchangeKind>> {};

INSTANTIATE_TEST_SUITE_P(Cases, MoeDeviceTest,
                         testing::Combine(testing::ValuesIn(Cases()), testing::Values(test::ExchangeKind::kDeviceExact,
                                                                                      test::ExchangeKind::kPadded)),
                         [](const auto& i) {
                           return absl::StrCat(std::get<0>(i.param).name, "_",
                                               test::ExchangeName(std::get<1>(i.param)));
                         });

TEST_P(MoeDeviceTest, TheBitsOfOneDevice) {
  const auto& [c, kind] = GetParam();
  const test::MoeTestModel model(c.shape);
  int64_t rows = 0;
  for (const int64_t of_rank : c.rank_rows) rows += of_rank;
  const Tensor x = model.RandomRows(rows, 3), residual = model.RandomResidual(rows, 4);
  const TestStream one;
  const test::MoeResult alone = RunAlone(one, *model.On(one), x, residual);
  const test::MoeRun run{.layout = ExpertLayout::FromResidents(c.shape.num_experts, c.residents),
                         .rank_rows = c.rank_rows,
                         .micro_batches = c.micro_batches,
                         .exchange = kind};
  test::MoeResult result = ResultFor(run, residual);
  test::ExpectNcclOk(static_cast<int>(c.residents.size()), [&](comm::Communicator* comm, test::DeviceMemory*) {
    const TestStream stream(1, comm->rank());
    return test::RunMoeRank(*model.On(stream), run, comm, stream, x, 1, &result);
  });
  EXPECT_TRUE(result.residual == alone.residual);
  int64_t computed = 0;
  for (const MoeStats& stats : result.stats) computed += stats.expert_rows;
  EXPECT_EQ(computed, kind == test::ExchangeKind::kPadded ? 0 : rows * c.shape.top_k);
}

// With fewer slots than experts on each device, copies at their own pace.
class MoeBudgetTest : public testing::TestWithParam<std::tuple<Case, test::ExchangeKind>> {};

INSTANTIATE_TEST_SUITE_P(Cases, MoeBudgetTest,
                         testing::Combine(testing::Values(Cases()[0], Alone()),
                                          testing::Values(test::ExchangeKind::kDeviceExact,
                                                          test::ExchangeKind::kPadded)),
                         [](const auto& i) {
                           return absl::StrCat(std::get<0>(i.param).name, "_",
                                               test::ExchangeName(std::get<1>(i.param)));
                         });

TEST_P(MoeBudgetTest, TheBitsOfResidentExperts) {
  constexpr int kRepeats = 3;
  const auto& [c, kind] = GetParam();
  const test::MoeTestModel model(c.shape);
  int64_t rows = 0;
  for (const int64_t of_rank : c.rank_rows) rows += of_rank;
  const Tensor x = model.RandomRows(rows, 3), residual = model.RandomResidual(rows, 4);
  test::MoeRun run{.layout = ExpertLayout::FromResidents(c.shape.num_experts, c.residents),
                   .rank_rows = c.rank_rows,
                   .exchange = kind};
  test::MoeResult results[2];
  test::CopyScript copies;
  copies.Delay(5, absl::Microseconds(300));
  for (test::MoeResult& result : results) {
    result = ResultFor(run, residual);
    test::ExpectNcclOk(static_cast<int>(c.residents.size()), [&](comm::Communicator* comm, test::DeviceMemory*) {
      const TestStream stream(1, comm->rank());
      return test::RunMoeRank(*model.On(stream), run, comm, stream, x, kRepeats, &result);
    });
    run.expert_slots = 2;
    run.policy = [](const offload::OffloadShape& shape) -> std::unique_ptr<offload::CachePolicy> {
      const std::vector<int64_t> popularity(static_cast<size_t>(shape.num_keys()), 1);
      return std::make_unique<offload::LruPolicy>(shape, true, popularity);
    };
    run.copies = &copies;
  }
  EXPECT_TRUE(results[0].residual == results[1].residual);
  int64_t misses = 0, waves = 0;
  for (size_t rank = 0; rank < c.residents.size(); ++rank) {
    misses += results[1].copies[rank].misses;
    waves += results[1].waves[rank];
  }
  EXPECT_GT(misses, 0);
  EXPECT_GT(waves, kRepeats);
}

// The inputs that change from one replay to the next, on one rank: all in the same memory.
struct Inputs {
  Tensor x, residual, num_rows;
  static absl::StatusOr<Inputs> On(const Stream& stream, const TensorView& x, const TensorView& residual,
                                   int32_t num_rows) {
    Inputs inputs;
    ASSIGN_OR_RETURN(inputs.x, CopyToDevice(stream, x));
    ASSIGN_OR_RETURN(inputs.residual, CopyToDevice(stream, residual));
    const TensorView number(&num_rows, DType::kI32, {1});
    ASSIGN_OR_RETURN(inputs.num_rows, CopyToDevice(stream, number));
    return inputs;
  }
  absl::Status CopyTo(const Stream& stream, const Inputs& to) const {
    RETURN_IF_ERROR(CopyTensor(stream, x, to.x));
    RETURN_IF_ERROR(CopyTensor(stream, residual, to.residual));
    return CopyTensor(stream, num_rows, to.num_rows);
  }
};

constexpr int64_t kRows = 5;                                                  // of each rank, padding included
constexpr int32_t kRealRows[][2] = {{5, 5}, {2, 4}, {0, 5}, {0, 0}, {5, 1}};  // of replay i on rank r

// Records the layer once and replays it for each of kRealRows; outputs[i] = the residual after replay i.
absl::Status Replay(const test::MoeTestModel& host_model, comm::Communicator* comm, std::vector<Tensor>* outputs) {
  const TestStream stream(1, comm->rank());
  const auto model = host_model.On(stream);
  const ExpertLayout layout = ExpertLayout::Contiguous(model->shape().num_experts, comm->world());
  const MoeLayer layer = model->LayerOf(stream, layout, comm->rank());
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({});
  std::vector<Inputs> inputs;
  for (size_t i = 0; i < std::size(kRealRows); ++i) {
    const auto seed = static_cast<uint32_t>(10 * i) + static_cast<uint32_t>(comm->rank());
    ASSIGN_OR_RETURN(Inputs of_replay, Inputs::On(stream, model->RandomRows(kRows, seed),
                                                  model->RandomResidual(kRows, seed), kRealRows[i][comm->rank()]));
    inputs.push_back(std::move(of_replay));
  }
  ASSIGN_OR_RETURN(const Inputs shown, Inputs::On(stream, model->RandomRows(kRows, 99),
                                                  model->RandomResidual(kRows, 99), static_cast<int32_t>(kRows)));
  MoeExecutor executor;
  MoeStats stats;
  const MoeContext step{.stream = &stream.get(),
                        .comm = comm,
                        .layout = &layout,
                        .schedule = &schedule,
                        .deadline = test::Soon(),
                        .stats = &stats,
                        .exchange = ExchangeMode::kPadded,
                        .max_rows = kRows};
  const LayerContext at{.num_rows = shown.num_rows.data<int32_t>()};
  DeviceQueue* const queue = stream.get().queue();
  RETURN_IF_ERROR(executor.Run(step, at, layer, shown.x, shown.residual));  // takes its memory
  RETURN_IF_ERROR(queue->BeginRecording());
  RETURN_IF_ERROR(executor.Run(step, at, layer, shown.x, shown.residual));
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceGraph> graph, queue->EndRecording());
  for (const Inputs& of_replay : inputs) {
    RETURN_IF_ERROR(of_replay.CopyTo(stream, shown));
    RETURN_IF_ERROR(queue->Run(graph.get()));
    ASSIGN_OR_RETURN(
        const std::unique_ptr<comm::Work> fence,
        comm->Fence({.stream = &stream.get(), .comm_class = comm::CommClass::kControl, .deadline = test::Soon()}));
    RETURN_IF_ERROR(fence->Wait());
    ASSIGN_OR_RETURN(Tensor after, CopyToHost(stream, shown.residual));
    outputs->push_back(std::move(after));
  }
  return comm->status();
}

TEST(MoeGraphTest, OneRecordingServesAnyCounts) {
  const test::MoeTestModel model({.hidden = 32, .ffn = 16, .num_experts = 4, .top_k = 2, .dtype = DType::kBf16});
  std::vector<Tensor> outputs[2];
  test::ExpectNcclOk(
      2, [&](comm::Communicator* comm, test::DeviceMemory*) { return Replay(model, comm, &outputs[comm->rank()]); });
  const TestStream one;
  const auto on_one = model.On(one);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(outputs[rank].size(), std::size(kRealRows));
    for (size_t i = 0; i < std::size(kRealRows); ++i) {
      const auto seed = static_cast<uint32_t>(10 * i) + static_cast<uint32_t>(rank);
      const Tensor x = model.RandomRows(kRows, seed), residual = model.RandomResidual(kRows, seed);
      const int64_t real = kRealRows[i][rank];
      const test::MoeResult alone = RunAlone(one, *on_one, x.view().Rows(0, real), residual.view().Rows(0, real));
      const std::string got(static_cast<const char*>(outputs[rank][i].view().raw()), alone.residual.size());
      EXPECT_TRUE(got == alone.residual) << "replay " << i << ", rank " << rank << ", " << real << " rows";
    }
  }
}

}  // namespace
}  // namespace switchyard::moe
