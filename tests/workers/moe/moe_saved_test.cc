// A layer that keeps activations for its backward: nothing but memory changes, and that only until shapes repeat.
#include "workers/moe/layer/moe_saved.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/moe/moe_test_model.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/moe/popularity/layer_load_predictor.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using testing::HasSubstr;

bool SameBytes(const TensorView& a, const TensorView& b) {
  return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.NumElements() * DTypeBytes(a.dtype())) == 0;
}

// One rank's layer and what it runs with.
struct Rank {
  Rank(const test::MoeTestModel& model, const ExpertLayout* layout, comm::Communicator* comm, int micro_batches)
      : layer(model.LayerOf(stream, *layout, comm->rank())),
        schedule(pipeline::BuildExpertParallel(
            {.micro_batches = micro_batches, .shared_expert = model.shape().shared_ffn > 0, .trains = true})) {
    step = {.stream = &stream,
            .comm = comm,
            .layout = layout,
            .schedule = &schedule,
            .deadline = test::Soon(),
            .stats = &stats};
  }
  absl::Status Run(MoeSaved* saved, const TensorView& x, const TensorView& residual) {
    return executor.Run(step, {.saved = saved}, layer, x, residual);
  }
  ThreadPool pool{1, false};
  const Stream stream = Stream::OnCpu(&pool);
  MoeLayer layer;
  pipeline::MoeSchedule schedule;
  MoeStats stats;
  MoeContext step;
  MoeExecutor executor;
};

// Where all of it lies.
std::vector<const void*> Places(const MoeSaved& saved) {
  std::vector<const void*> places = {saved.topk_idx.raw(),      saved.topk_weight.raw(), saved.logits.raw(),
                                     saved.shared_hidden.raw(), saved.shared_sums.raw(), saved.shared_gate.raw()};
  for (int i = 0; i < saved.num_chunks; ++i) {
    const MoeSaved::Chunk& chunk = *saved.chunks[static_cast<size_t>(i)];
    places.insert(places.end(), {chunk.sums.raw(), chunk.hidden.raw(), chunk.exchange.x().raw(),
                                 chunk.exchange.x_rows().data(), chunk.exchange.routes().slot_row.data()});
  }
  return places;
}

class MoeSavedTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(MicroBatches, MoeSavedTest, testing::Values(1, 3));

// Two layers in one executor, as in a model: each keeps its own, whatever runs after it.
TEST_P(MoeSavedTest, KeepsEachLayersOwnInTheSamePlace) {
  const test::MoeTestModel model({.shared_ffn = 16, .dtype = DType::kBf16});
  const ExpertLayout layout = ExpertLayout::Contiguous(model.shape().num_experts, 2);
  test::ExpectRanksOk(test::Backend::kLocal, 2, [&](comm::Communicator* comm) -> absl::Status {
    Rank rank(model, &layout, comm, GetParam());
    const Tensor x = model.RandomRows(9 + comm->rank(), 3), other = model.RandomRows(9 + comm->rank(), 4);
    MoeSaved first, second;
    std::vector<const void*> places;
    Tensor hidden, sums, logits;
    for (int i = 0; i < 3; ++i) {
      const Tensor residual = model.RandomResidual(9 + comm->rank(), 2),
                   plain = model.RandomResidual(9 + comm->rank(), 2);
      RETURN_IF_ERROR(rank.Run(nullptr, x, plain));
      RETURN_IF_ERROR(rank.Run(&first, x, residual));
      EXPECT_TRUE(SameBytes(residual, plain));
      EXPECT_EQ(first.num_chunks, GetParam());
      ASSIGN_OR_RETURN(hidden, CopyToHost(rank.stream, first.chunk(0).hidden));
      ASSIGN_OR_RETURN(sums, CopyToHost(rank.stream, first.chunk(0).sums));
      ASSIGN_OR_RETURN(logits, CopyToHost(rank.stream, first.logits));
      RETURN_IF_ERROR(rank.Run(&second, other, residual));
      EXPECT_TRUE(SameBytes(first.chunk(0).hidden, hidden));
      EXPECT_TRUE(SameBytes(first.chunk(0).sums, sums));
      EXPECT_TRUE(SameBytes(first.logits, logits));
      EXPECT_FALSE(SameBytes(first.logits, second.logits));
      if (i > 0) {
        EXPECT_EQ(Places(first), places);
      }
      places = Places(first);
    }
    EXPECT_EQ(sums.dim(1), 2 * model.shape().ffn);
    EXPECT_EQ(first.shared_sums.dim(1), 2 * model.shape().shared_ffn);
    return absl::OkStatus();
  });
}

// Does nothing but be there.
class NoLoadPredictor : public LayerLoadPredictor {
 public:
  absl::StatusOr<absl::Span<const placement::LayerEstimate>> Begin(const ForecastPass&) override {
    return absl::Span<const placement::LayerEstimate>();
  }
  absl::StatusOr<absl::Span<const placement::LayerEstimate>> OnGate(const MoeContext&, const LayerContext&) override {
    return absl::Span<const placement::LayerEstimate>();
  }
};

TEST(MoeSavedErrorsTest, SaysWhatCannotBeSaved) {
  const test::MoeTestModel model({});
  const ExpertLayout layout = ExpertLayout::Contiguous(model.shape().num_experts, 1);
  auto ranks = test::MakeGroup(test::Backend::kLocal, 1);
  Rank rank(model, &layout, ranks[0].get(), 1);
  const Tensor x = model.RandomRows(3, 1), residual = model.RandomResidual(3, 2);
  MoeSaved saved;
  ASSERT_TRUE(rank.Run(&saved, x, residual).ok());
  EXPECT_EQ(saved.num_chunks, 1);
  rank.step.exchange = ExchangeMode::kPadded;
  rank.step.max_rows = 3;
  const absl::Status bounded = rank.Run(&saved, x, residual);
  EXPECT_EQ(bounded.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(bounded.message()), HasSubstr("with a bounded exchange"));
  EXPECT_EQ(saved.num_chunks, 0);  // nothing that a backward could take for this step's
  rank.step.exchange = ExchangeMode::kExact;
  NoLoadPredictor load_predictor;
  rank.step.load_predictor = &load_predictor;
  EXPECT_THAT(std::string(rank.Run(&saved, x, residual).message()), HasSubstr("a load predictor"));
  rank.step.load_predictor = nullptr;
  const pipeline::MoeSchedule inference = pipeline::BuildExpertParallel({});
  rank.step.schedule = &inference;
  EXPECT_THAT(std::string(rank.Run(&saved, x, residual).message()), HasSubstr("a schedule that has no backward"));
}

}  // namespace
}  // namespace switchyard::moe
