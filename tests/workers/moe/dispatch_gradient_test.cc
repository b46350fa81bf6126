// Gradients go the way that rows went, and come back the way that outputs came: on any number of ranks, with and
// without rows, whatever was dropped.
#include "workers/moe/dispatch/dispatch_gradient.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/dispatch/host_dispatcher.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using test::Backend;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kHidden = 5;

struct Case {
  std::string name;
  std::vector<std::vector<int32_t>> residents;  // [R]
  std::vector<int64_t> rows;                    // [R]
  int64_t top_k = 2;
  test::Backend backend = test::Backend::kLocal;
};

// The k-th choice of token t of a rank: some are dropped, no expert twice.
int32_t Choice(int rank, int64_t t, int64_t k, int64_t experts) {
  if ((rank + t + k) % 5 == 4) return -1;
  return static_cast<int32_t>((rank * 3 + t + k * (1 + t % 2)) % experts);
}

double Gradient(int rank, int64_t t, int64_t h) { return static_cast<double>(100 * rank + 10 * t + h); }
double WeightOf(int rank, int64_t t, int64_t k) {
  return 0.5 + rank + 0.25 * static_cast<double>(t) + static_cast<double>(k) / 8;
}

// One rank's tensors of an exchange.
struct Rows {
  Rows(int rank, int64_t rows, int64_t top_k, int64_t experts)
      : idx(DType::kI32, {rows, top_k}),
        weight(DType::kF64, {rows, top_k}),
        x(DType::kF64, {rows, kHidden}),
        dy(DType::kF64, {rows, kHidden}) {
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t k = 0; k < top_k; ++k) {
        idx.data<int32_t>()[t * top_k + k] = Choice(rank, t, k, experts);
        weight.data<double>()[t * top_k + k] = WeightOf(rank, t, k);
      }
      for (int64_t h = 0; h < kHidden; ++h) {
        x.data<double>()[t * kHidden + h] = -Gradient(rank, t, h);
        dy.data<double>()[t * kHidden + h] = Gradient(rank, t, h);
      }
    }
  }
  Tensor idx, weight, x, dy;
};

// "Expert" e multiplies a gradient by e + 2 and says 10 * weight + e; the gradient is that of the row that came.
void ComputeExperts(const HostDispatcher& forward, absl::Span<const int32_t> residents, const TensorView& x,
                    const DispatchGradient& gradient) {
  const absl::Span<const int32_t> offsets = forward.offsets().span();
  for (size_t s = 0; s < residents.size(); ++s) {
    for (int32_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      const int32_t row = forward.x_rows().data()[i];
      for (int64_t h = 0; h < kHidden; ++h) {
        EXPECT_EQ(gradient.dy().row<double>(row)[h], -x.row<double>(row)[h]);
        gradient.dx().row<double>(i)[h] = (residents[s] + 2) * gradient.dy().row<double>(row)[h];
      }
      *gradient.dweight().row<double>(i) = 10 * *gradient.weight().row<double>(i) + residents[s];
    }
  }
}

void ExpectReturned(int rank, const Rows& rows, const Tensor& dx, const Tensor& dweight) {
  const int64_t top_k = rows.idx.dim(1);
  for (int64_t t = 0; t < rows.idx.dim(0); ++t) {
    double factor = 0;
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t expert = rows.idx.data<int32_t>()[t * top_k + k];
      factor += expert < 0 ? 0 : expert + 2;
      EXPECT_EQ(dweight.data<double>()[t * top_k + k], expert < 0 ? 0 : 10 * WeightOf(rank, t, k) + expert);
    }
    // Added to what was there: ones.
    for (int64_t h = 0; h < kHidden; ++h) {
      EXPECT_EQ(dx.data<double>()[t * kHidden + h], 1 + factor * Gradient(rank, t, h)) << "token " << t;
    }
  }
}

class Exchanges {
 public:
  Exchanges(comm::Communicator* comm, const ExpertLayout* layout, int64_t experts)
      : comm_(comm), layout_(layout), experts_(experts) {
    context_ = {.stream = &stream_, .comm = comm, .deadline = test::Soon(), .stats = &stats_};
    layer_.layout = layout;
  }

  absl::Status Forward(int64_t num_rows, int64_t top_k) {
    rows_ = std::make_unique<Rows>(comm_->rank(), num_rows, top_k, experts_);
    LayerContext all = layer_;
    all.x = rows_->x;
    all.topk_idx = rows_->idx;
    forward_.UseInputs(&inputs_);
    RETURN_IF_ERROR(forward_.StartDispatch(context_, all));
    RETURN_IF_ERROR(forward_.FinishDispatch(context_, all));
    return absl::OkStatus();
  }
  absl::Status Backward() {
    gradient_.UseOutputGradients(&output_gradients_);
    RETURN_IF_ERROR(gradient_.StartResend(context_, layer_, forward_.routes(), rows_->dy, rows_->weight));
    RETURN_IF_ERROR(gradient_.FinishResend(context_));
    gradient_.TakeInputGradients(&input_gradients_);
    ComputeExperts(forward_, layout_->Residents(comm_->rank()), forward_.x(), gradient_);
    RETURN_IF_ERROR(gradient_.StartReturn(context_, layer_));
    Tensor dx(DType::kF64, rows_->x.shape()), dweight(DType::kF64, rows_->idx.shape());
    std::fill_n(dx.data<double>(), dx.view().NumElements(), 1.0);
    RETURN_IF_ERROR(gradient_.FinishReturn(context_, dx, dweight));
    ExpectReturned(comm_->rank(), *rows_, dx, dweight);
    return absl::OkStatus();
  }
  const Rows& rows() const { return *rows_; }
  const MoeContext& context() const { return context_; }
  LayerContext& layer() { return layer_; }
  const HostDispatcher& forward() const { return forward_; }
  DispatchGradient& gradient() { return gradient_; }
  const MoeStats& stats() const { return stats_; }

 private:
  ThreadPool pool_{2, false};
  const Stream stream_ = Stream::OnCpu(&pool_);
  comm::Communicator* const comm_;
  const ExpertLayout* const layout_;
  const int64_t experts_;
  MoeStats stats_;
  MoeContext context_;
  LayerContext layer_;
  std::unique_ptr<Rows> rows_;
  RowScratch inputs_, output_gradients_, input_gradients_;
  HostDispatcher forward_;
  DispatchGradient gradient_;
};

class DispatchGradientTest : public testing::TestWithParam<Case> {};

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {.name = "alone", .residents = {{0, 1, 2}}, .rows = {7}},
      {.name = "two", .residents = {{0, 1}, {2, 3, 4}}, .rows = {6, 3}, .top_k = 3},
      {.name = "empty_rank", .residents = {{0}, {1, 2}, {3}}, .rows = {5, 0, 9}},
      {.name = "no_rows", .residents = {{0}, {1}}, .rows = {0, 0}},
      {.name = "no_experts", .residents = {{0, 1, 2, 3}, {}, {}}, .rows = {4, 4, 1}},
      {.name = "others_rows_only", .residents = {{}, {1, 0, 2}}, .rows = {6, 0}},
      {.name = "replicas", .residents = {{3, 0, 1}, {1, 2}, {2, -1, 0}, {1}}, .rows = {3, 8, 2, 5}, .top_k = 1},
  };
  for (Case& c : cases) c.backend = test::Backend::kLocal;
  Case sockets = cases[1];
  sockets.name = "two_sockets";
  sockets.backend = test::Backend::kSocket;
  cases.push_back(sockets);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, DispatchGradientTest, testing::ValuesIn(Cases()),
                         [](const auto& i) { return i.param.name; });

// Twice with other rows between: an object is good for the next exchange.
TEST_P(DispatchGradientTest, EveryPairGetsItsOwnBack) {
  const Case& c = GetParam();
  int experts = 0;
  for (const auto& of_rank : c.residents) {
    for (const int32_t expert : of_rank) experts = std::max(experts, expert + 1);
  }
  const ExpertLayout layout = ExpertLayout::FromResidents(experts, c.residents);
  test::ExpectRanksOk(c.backend, static_cast<int>(c.residents.size()), [&](comm::Communicator* comm) -> absl::Status {
    Exchanges exchanges(comm, &layout, experts);
    for (const int64_t more : {0, 3, 0}) {
      RETURN_IF_ERROR(exchanges.Forward(c.rows[comm->rank()] + more, c.top_k));
      RETURN_IF_ERROR(exchanges.Backward());
    }
    return comm->status();
  });
}

// Fails, is late or goes wrong at any launch of the backward: an error everywhere, or nothing at all.
TEST(DispatchGradientFaultTest, ALateRankChangesNothingAndAFailedOneEndsAll) {
  const ExpertLayout layout = ExpertLayout::Contiguous(6, 3);
  for (const auto kind :
       {comm::CommFault::Kind::kDelay, comm::CommFault::Kind::kFail, comm::CommFault::Kind::kWrongOp}) {
    for (const int64_t at : {1, 2}) {
      auto ranks = test::MakeGroup(test::Backend::kLocal, 3);
      ranks[1] = comm::MakeFaultyCommunicator(std::move(ranks[1]), {kind, at, absl::Milliseconds(20)});
      const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) -> absl::Status {
        Exchanges exchanges(comm, &layout, 6);
        absl::Status status = exchanges.Forward(4, 2);
        if (status.ok()) status = exchanges.Backward();
        if (!status.ok()) comm->Abort(status.message());
        return status;
      });
      for (const absl::Status& status : statuses)
        EXPECT_EQ(status.ok(), kind == comm::CommFault::Kind::kDelay) << status;
    }
  }
}

// Two chunks of one shape: gradients that come fit, but are of the other chunk.
TEST(DispatchGradientFaultTest, AnotherOrderOfChunksIsNamed) {
  const ExpertLayout layout = ExpertLayout::Contiguous(6, 2);
  for (const test::Backend backend : test::kBackends) {
    auto ranks = test::MakeGroup(backend, 2);
    const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) -> absl::Status {
      Exchanges exchanges(comm, &layout, 6);
      exchanges.layer().index = 5;
      RETURN_IF_ERROR(exchanges.Forward(4, 2));
      exchanges.layer().chunk = comm->rank() + 1;
      const absl::Status status = exchanges.Backward();
      if (!status.ok()) comm->Abort(status.message());
      return status;
    });
    EXPECT_FALSE(statuses[0].ok() || statuses[1].ok());
    const absl::Status& found = statuses[0].code() == absl::StatusCode::kInternal ? statuses[0] : statuses[1];
    EXPECT_THAT(std::string(found.message()),
                AllOf(HasSubstr("collectives differ"), HasSubstr("outputs' gradients of MoE layer 5, part 1"),
                      HasSubstr("outputs' gradients of MoE layer 5, part 2")));
  }
}

// A rank that follows the routes of another exchange learns from its peers how much they expected.
TEST(DispatchGradientFaultTest, OtherRoutesAreAnError) {
  const ExpertLayout layout = ExpertLayout::Contiguous(6, 2);
  auto ranks = test::MakeGroup(test::Backend::kLocal, 2);
  const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) -> absl::Status {
    Exchanges first(comm, &layout, 6), second(comm, &layout, 6);
    RETURN_IF_ERROR(first.Forward(4, 2));
    RETURN_IF_ERROR(second.Forward(8, 2));
    const absl::Status status = (comm->rank() == 0 ? first : second).Backward();
    if (!status.ok()) comm->Abort(status.message());
    return status;
  });
  // (The rank that sees it first frees the other.)
  EXPECT_FALSE(statuses[0].ok() || statuses[1].ok());
  const absl::Status& found = statuses[0].code() == absl::StatusCode::kInternal ? statuses[0] : statuses[1];
  EXPECT_EQ(found.code(), absl::StatusCode::kInternal) << found;
  EXPECT_THAT(std::string(found.message()), HasSubstr("collectives differ: in an exchange of "));
}

TEST(DispatchGradientErrorsTest, NamesWhatDoesNotFit) {
  const ExpertLayout layout = ExpertLayout::Contiguous(3, 1);
  test::ExpectRanksOk(test::Backend::kLocal, 1, [&](comm::Communicator* comm) -> absl::Status {
    Exchanges exchanges(comm, &layout, 3);
    RETURN_IF_ERROR(exchanges.Forward(4, 2));
    const HostRoutes& routes = exchanges.forward().routes();
    const Rows& rows = exchanges.rows();
    const auto resend = [&](const TensorView& dy, const TensorView& weight) {
      return exchanges.gradient().StartResend(exchanges.context(), exchanges.layer(), routes, dy, weight);
    };
    const Tensor other(DType::kF32, {4, 2});
    const absl::Status dtype = resend(rows.dy, other), few = resend(rows.dy.view().Rows(0, 3), rows.weight);
    EXPECT_EQ(dtype.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(dtype.message()), HasSubstr("for 8 choices, got fp64 [4, 5] cpu and fp32 [4, 2] cpu"));
    EXPECT_EQ(few.code(), absl::StatusCode::kInvalidArgument);
    RETURN_IF_ERROR(resend(rows.dy, rows.weight));
    RETURN_IF_ERROR(exchanges.gradient().FinishResend(exchanges.context()));
    const absl::Status dx = exchanges.gradient().FinishReturn(exchanges.context(), rows.dy, other);
    EXPECT_EQ(dx.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(dx.message()), HasSubstr("got fp64 [4, 5] cpu and fp32 [4, 2] cpu"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace switchyard::moe
