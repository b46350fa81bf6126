// Ranks that share the test's device, and the ops of an exchange between them step by step: the test carries their
// blocks and answers.
//
// An expert here marks its row, so what comes back says which row it was and who had it.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "workers/moe/dispatch/device_expert_layout.h"
#include "workers/moe/dispatch/dispatch_plan.h"
#include "workers/ops/exchange/row_exchange.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_backend.h"

namespace switchyard::moe {

struct ExchangeCase {
  const char* name;
  int num_experts;
  std::vector<std::vector<int32_t>> residents;  // [R]
  std::vector<int64_t> rows;                    // [R]
  int64_t top_k;
  int64_t width = 8;        // of a row, in 16-bit elements
  int drop_every = 0;       // every so many-th choice is dropped
  int64_t padding = 0;      // last rows that choose nobody
  int only = -1;            // every row's first choice
  int64_t first_token = 0;  // of all ranks
};

inline std::vector<ExchangeCase> ExchangeCases() {
  return {
      {"Two", 4, {{0, 1}, {2, 3}}, {5, 3}, 2},
      {"OneTakesAll", 4, {{0, 1}, {2, 3}}, {6, 6}, 1, 8, 0, 0, 3},
      {"RanksWithoutRows", 6, {{0, 1}, {2, 3}, {4, 5}}, {0, 7, 0}, 3},
      {"NoRowsAnywhere", 4, {{0, 1}, {2, 3}}, {0, 0}, 2},
      {"RankWithoutExperts", 3, {{0, 1}, {}, {2}}, {4, 5, 2}, 2},
      {"Dropped", 4, {{0, 1}, {2, 3}}, {5, 4}, 3, 8, 2},
      {"AllDropped", 4, {{0, 1}, {2, 3}}, {3, 2}, 2, 8, 1},
      {"Padding", 4, {{0, 1}, {2, 3}}, {8, 8}, 2, 8, 0, 5},
      {"Replicas", 6, {{2, 0, 1}, {4, 2, 3}, {1, 5, 2, 4}}, {9, 4, 7}, 3, 16, 0, 0, -1, 3},
      {"OddWidth", 5, {{0, 1}, {2, 3}, {4}}, {4, 3, 5}, 4, 7},
      {"EveryExpert", 8, {{0, 1, 2, 3}, {4, 5, 6, 7}}, {6, 2}, 8, 24},
      {"ManyRanks", 9, {{0}, {1}, {2, 3}, {4}, {5}, {6}, {7}, {8}}, {1, 2, 3, 0, 1, 1, 4, 2}, 5, 40},
      {"LongRows", 4, {{0, 1}, {2, 3}}, {3, 3}, 2, 3000},
  };
}

// Choices of one rank, all different in a row.
inline std::vector<int32_t> Choices(const ExchangeCase& c, int rank) {
  std::mt19937 random(17 * rank + 1);
  std::vector<int32_t> experts(c.num_experts), choices;
  for (int e = 0; e < c.num_experts; ++e) experts[e] = e;
  for (int64_t t = 0; t < c.rows[rank]; ++t) {
    std::shuffle(experts.begin(), experts.end(), random);
    if (c.only >= 0) std::iter_swap(experts.begin(), std::find(experts.begin(), experts.end(), c.only));
    for (int64_t k = 0; k < c.top_k; ++k) {
      const bool dropped = c.drop_every > 0 && (t * c.top_k + k) % c.drop_every == 0;
      choices.push_back(dropped || t >= c.rows[rank] - c.padding ? -1 : experts[k]);
    }
  }
  return choices;
}

inline std::vector<uint16_t> RowOf(const ExchangeCase& c, int rank, int64_t token) {
  std::vector<uint16_t> row(c.width);
  for (int64_t i = 0; i < c.width; ++i) row[i] = static_cast<uint16_t>(rank * 4096 + token * 64 + i % 64);
  return row;
}

// The row with the mark of `expert`, which stands for the output.
inline std::vector<uint16_t> Marked(std::vector<uint16_t> row, int expert) {
  for (uint16_t& value : row) value = static_cast<uint16_t>(value ^ (expert + 1) << 11);
  return row;
}

// The memory of one rank and what it does.
struct ExchangeRank {
  int rank = 0;
  int64_t num_experts = 0;
  Tensor topk_idx, x, ints, send, recv, all_y, answers;
  DeviceExpertLayout table;
  ops::RowRoutes routes;
  TensorView counts, output_row, slots, x_rows;
  ops::ExpertOrder order;
  DispatchPlan plan;
};

// One stream for all tests of a suite: its queue's scratch takes longer to get than a test.
class OnDeviceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Device device = TestDevice();
    if (device.is_cpu() || RegisteredBackend(device.kind).NumDevices() > 0) stream_ = std::make_unique<TestStream>();
  }
  static void TearDownTestSuite() { stream_.reset(); }
  void SetUp() override {
    if (stream_ == nullptr) GTEST_SKIP() << "skipped: no GPU";
  }

  static inline std::unique_ptr<TestStream> stream_;
};

class TokenDispatcherTest : public OnDeviceTest, public testing::WithParamInterface<std::tuple<ExchangeCase, bool>> {
 protected:
  const ExchangeCase& c() const { return std::get<0>(GetParam()); }
  bool bounded() const { return std::get<1>(GetParam()); }
  int world() const { return static_cast<int>(c().residents.size()); }

  Tensor OnDevice(DType dtype, Shape shape, const void* from = nullptr) {
    Tensor host(dtype, shape);
    if (host.bytes() > 0) std::memset(host.view().raw(), 0x7B, host.bytes());
    if (from != nullptr && host.bytes() > 0) std::memcpy(host.view().raw(), from, host.bytes());
    return *CopyToDevice(*stream_, host);
  }
  template <class Value>
  std::vector<Value> OnHost(const TensorView& view) {
    const Tensor host = *CopyToHost(*stream_, view);
    const auto* values = static_cast<const Value*>(host.view().raw());
    return {values, values + host.bytes() / static_cast<int64_t>(sizeof(Value))};
  }
  // Bytes [begin, begin + count) of a matrix, as rows of it.
  static TensorView Bytes(const Tensor& memory, int64_t begin, int64_t count) {
    const int64_t row_bytes = memory.dim(1) * 2;
    EXPECT_EQ(begin % row_bytes + count % row_bytes, 0);
    return memory.view().Rows(begin / row_bytes, count / row_bytes);
  }

  void Route(ExchangeRank* rank) {
    const std::vector<int32_t> choices = Choices(c(), rank->rank);
    const int64_t rows = c().rows[rank->rank], n = rows * c().top_k;
    std::vector<uint16_t> values;
    for (int64_t t = 0; t < rows; ++t) {
      const std::vector<uint16_t> row = RowOf(c(), rank->rank, t);
      values.insert(values.end(), row.begin(), row.end());
    }
    rank->topk_idx = OnDevice(DType::kI32, {rows, c().top_k}, choices.data());
    rank->x = OnDevice(DType::kBf16, {rows, c().width}, values.data());
    rank->num_experts = static_cast<int64_t>(c().residents[rank->rank].size());
    rank->table = *DeviceExpertLayout::Make(*stream_, layout_, rank->rank);
    // [T * K] arrays, then those of ranks.
    rank->ints = OnDevice(DType::kI32, {7 * n + 4 * world() + 2});
    int64_t begin = 0;
    const auto take = [&](int64_t count) { return rank->ints.view().Rows((begin += count) - count, count); };
    const Shape shape = {rows, c().top_k};
    rank->routes.places = {take(n).Reshape(shape), take(n).Reshape(shape), take(n).Reshape(shape)};
    const TensorView token = take(n);
    rank->routes.pairs = {take(world() + 1), token, take(n)};
    rank->routes.rows = {take(world() + 1), token, take(n)};
    rank->output_row = take(n);
    rank->counts = take(2 * world()).Reshape({world(), 2});
    ASSERT_TRUE(ops::RouteRows(*stream_, rank->topk_idx, rank->table.view(), c().first_token, rank->routes).ok());
    ASSERT_TRUE(ops::CountRoutes(*stream_, rank->routes, rank->counts).ok());
  }

  void Pack(std::vector<ExchangeRank>* ranks, ExchangeRank* rank) {
    const DispatchShape shape{&layout_, rank->rank, c().rows[rank->rank], c().top_k, c().width * 2};
    std::vector<int32_t> received;
    for (const ExchangeRank& from : *ranks) {
      const std::vector<int32_t> counts = OnHost<int32_t>(from.counts);
      received.insert(received.end(), {counts[2 * rank->rank], counts[2 * rank->rank + 1]});
    }
    const int64_t max_rows = 1 + *std::max_element(c().rows.begin(), c().rows.end());
    const auto plan =
        bounded() ? BoundedPlan(shape, max_rows) : ExactPlan(shape, OnHost<int32_t>(rank->counts), received);
    ASSERT_TRUE(plan.ok()) << plan.status();
    rank->plan = *plan;
    rank->send = OnDevice(DType::kBf16, {plan->send.num_rows, c().width});
    rank->recv = OnDevice(DType::kBf16, {plan->recv.num_rows, c().width});
    const absl::Status packed =
        ops::PackRows(*stream_, plan->send, rank->routes, rank->x,
                      {.send = rank->send,
                       .own = rank->recv.view().Rows(plan->recv.of[rank->rank].first_row, c().rows[rank->rank]),
                       .first_output = plan->num_outputs,
                       .output_row = rank->output_row});
    ASSERT_TRUE(packed.ok()) << packed;
  }

  // The all-to-all, one part.
  void Carry(const TensorView& from, const TensorView& to) {
    ASSERT_EQ(from.shape(), to.shape());
    ASSERT_TRUE(CopyTensor(*stream_, from, to).ok());
  }

  void Sort(ExchangeRank* rank) {
    const int64_t pairs = rank->plan.recv.num_pairs, lists = std::max<int64_t>(1, rank->num_experts);
    Tensor memory = OnDevice(DType::kI32, {3 * pairs + lists + 1 + rank->plan.num_outputs});
    const TensorView all = memory;
    rank->slots = all.Rows(0, pairs);
    rank->order = {all.Rows(pairs, lists + 1), all.Rows(pairs + lists + 1, pairs),
                   all.Rows(2 * pairs + lists + 1, pairs)};
    rank->x_rows = all.Rows(3 * pairs + lists + 1, rank->plan.num_outputs);
    const absl::Status read =
        ops::ReadPairs(*stream_, rank->plan.recv, rank->routes.places, rank->recv, rank->num_experts, rank->slots);
    ASSERT_TRUE(read.ok()) << read;
    ASSERT_TRUE(ops::BuildExpertOrder(*stream_, rank->slots.Reshape({pairs, 1}), lists, rank->order).ok());
    ASSERT_TRUE(ops::PlacePairs(*stream_, rank->plan.recv, c().top_k, rank->recv,
                                {.y_row = rank->order.slot_row, .x_rows = rank->x_rows, .output_row = rank->output_row})
                    .ok());
    kept_.push_back(std::move(memory));
  }

  void RunExperts(ExchangeRank* rank) {
    const std::vector<int32_t> offsets = OnHost<int32_t>(rank->order.offsets), x_rows = OnHost<int32_t>(rank->x_rows);
    const std::vector<uint16_t> x = OnHost<uint16_t>(rank->recv);
    std::vector<uint16_t> y((rank->plan.num_outputs + rank->plan.num_returned) * c().width, 0xEEEE);
    for (int64_t slot = 0; slot < rank->num_experts; ++slot) {
      for (int64_t i = offsets[slot]; i < offsets[slot + 1]; ++i) {
        const auto from = x.begin() + x_rows[i] * c().width;
        const auto row = Marked({from, from + c().width}, c().residents[rank->rank][slot]);
        std::copy(row.begin(), row.end(), y.begin() + i * c().width);
      }
    }
    rank->all_y = OnDevice(DType::kBf16, {rank->plan.num_outputs + rank->plan.num_returned, c().width}, y.data());
    rank->answers = OnDevice(DType::kBf16, {rank->plan.num_answers, c().width});
    const int64_t own = rank->plan.recv.num_pairs - rank->plan.num_answers;
    const IntView rows = IntView(rank->order.slot_row).Part(own, rank->plan.num_answers);
    ASSERT_TRUE(
        ops::GatherPresent(*stream_, rank->all_y.view().Rows(0, rank->plan.num_outputs), rows, rank->answers).ok());
  }

  const ExpertLayout layout_ = ExpertLayout::FromResidents(c().num_experts, c().residents);
  std::vector<Tensor> kept_;
};

}  // namespace switchyard::moe
