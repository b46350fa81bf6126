// The ops of an exchange on the test's device: ranks share it, and the test carries their blocks and answers.
//
// An expert here marks its row, so what comes back says which row it was and who had it.
#include "workers/ops/row_exchange.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "workers/moe/exchange_plan.h"
#include "workers/moe/replica_table.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_backend.h"

namespace switchyard {
namespace {

struct Case {
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

std::vector<Case> Cases() {
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
std::vector<int32_t> Choices(const Case& c, int rank) {
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

std::vector<uint16_t> RowOf(const Case& c, int rank, int64_t token) {
  std::vector<uint16_t> row(c.width);
  for (int64_t i = 0; i < c.width; ++i) row[i] = static_cast<uint16_t>(rank * 4096 + token * 64 + i % 64);
  return row;
}

// What expert e of row x is.
std::vector<uint16_t> Marked(std::vector<uint16_t> row, int expert) {
  for (uint16_t& value : row) value = static_cast<uint16_t>(value ^ (expert + 1) << 11);
  return row;
}

// The memory of one rank and what it does.
struct Rank {
  int rank = 0;
  int64_t num_experts = 0;
  Tensor topk_idx, x, ints, send, recv, all_y, answers;
  ReplicaTable table;
  RowRoutes routes;
  TensorView counts, output_row, slots, x_rows;
  ExpertOrder order;
  ExchangePlan plan;
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

class RowExchangeTest : public OnDeviceTest, public testing::WithParamInterface<std::tuple<Case, bool>> {
 protected:
  const Case& c() const { return std::get<0>(GetParam()); }
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

  void Route(Rank* rank) {
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
    rank->table = *ReplicaTable::Make(*stream_, layout_, rank->rank);
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
    ASSERT_TRUE(RouteRows(*stream_, rank->topk_idx, rank->table.view(), c().first_token, rank->routes).ok());
    ASSERT_TRUE(CountRoutes(*stream_, rank->routes, rank->counts).ok());
  }

  void Pack(std::vector<Rank>* ranks, Rank* rank) {
    const ExchangeShape shape{&layout_, rank->rank, c().rows[rank->rank], c().top_k, c().width * 2};
    std::vector<int32_t> received;
    for (const Rank& from : *ranks) {
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
        PackRows(*stream_, plan->send, rank->routes, rank->x,
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

  void Sort(Rank* rank) {
    const int64_t pairs = rank->plan.recv.num_pairs, lists = std::max<int64_t>(1, rank->num_experts);
    Tensor memory = OnDevice(DType::kI32, {3 * pairs + lists + 1 + rank->plan.num_outputs});
    const TensorView all = memory;
    rank->slots = all.Rows(0, pairs);
    rank->order = {all.Rows(pairs, lists + 1), all.Rows(pairs + lists + 1, pairs),
                   all.Rows(2 * pairs + lists + 1, pairs)};
    rank->x_rows = all.Rows(3 * pairs + lists + 1, rank->plan.num_outputs);
    const absl::Status read =
        ReadPairs(*stream_, rank->plan.recv, rank->routes.places, rank->recv, rank->num_experts, rank->slots);
    ASSERT_TRUE(read.ok()) << read;
    ASSERT_TRUE(BuildExpertOrder(*stream_, rank->slots.Reshape({pairs, 1}), lists, rank->order).ok());
    ASSERT_TRUE(PlacePairs(*stream_, rank->plan.recv, c().top_k, rank->recv,
                           {.y_row = rank->order.slot_row, .x_rows = rank->x_rows, .output_row = rank->output_row})
                    .ok());
    kept_.push_back(std::move(memory));
  }

  void RunExperts(Rank* rank) {
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
    ASSERT_TRUE(GatherPresent(*stream_, rank->all_y.view().Rows(0, rank->plan.num_outputs), rows, rank->answers).ok());
  }

  const ExpertLayout layout_ = ExpertLayout::FromResidents(c().num_experts, c().residents, 1);
  std::vector<Tensor> kept_;
};

INSTANTIATE_TEST_SUITE_P(Cases, RowExchangeTest, testing::Combine(testing::ValuesIn(Cases()), testing::Bool()),
                         [](const auto& i) {
                           return absl::StrCat(std::get<0>(i.param).name, std::get<1>(i.param) ? "_bounded" : "_exact");
                         });

TEST_P(RowExchangeTest, PlacesAreTheLayouts) {
  for (int r = 0; r < world(); ++r) {
    Rank rank;
    rank.rank = r;
    ASSERT_NO_FATAL_FAILURE(Route(&rank));
    const std::vector<int32_t> choices = Choices(c(), r);
    const auto rank_of = OnHost<int32_t>(rank.routes.places.rank_of),
               slot_of = OnHost<int32_t>(rank.routes.places.slot_of);
    const auto first_of = OnHost<int32_t>(rank.routes.places.first_of);
    for (size_t i = 0; i < choices.size(); ++i) {
      const int64_t token = static_cast<int64_t>(i) / c().top_k;
      const auto place =
          choices[i] < 0 ? ExpertLayout::Place{-1, -1} : layout_.PlaceOf(choices[i], r, c().first_token + token);
      EXPECT_EQ((ExpertLayout::Place{rank_of[i], slot_of[i]}), place) << "rank " << r << " choice " << i;
      const auto row = rank_of.begin() + token * c().top_k;
      const bool seen = std::find(row, rank_of.begin() + static_cast<int64_t>(i), rank_of[i]) !=
                        rank_of.begin() + static_cast<int64_t>(i);
      EXPECT_EQ(first_of[i], seen ? -1 : rank_of[i]) << "rank " << r << " choice " << i;
    }
  }
}

TEST_P(RowExchangeTest, EveryChoiceComesBackFromItsExpert) {
  std::vector<Rank> ranks(world());
  for (int r = 0; r < world(); ++r) {
    ranks[r].rank = r;
    ASSERT_NO_FATAL_FAILURE(Route(&ranks[r]));
  }
  for (Rank& rank : ranks) ASSERT_NO_FATAL_FAILURE(Pack(&ranks, &rank));
  for (const Rank& from : ranks) {
    for (const Rank& to : ranks) {
      const MessageParts &sent = from.plan.dispatch_send, &received = to.plan.dispatch_recv;
      ASSERT_EQ(sent.bytes[to.rank], received.bytes[from.rank]);
      ASSERT_NO_FATAL_FAILURE(Carry(Bytes(from.send, sent.offsets[to.rank], sent.bytes[to.rank]),
                                    Bytes(to.recv, received.offsets[from.rank], received.bytes[from.rank])));
    }
  }
  for (Rank& rank : ranks) {
    ASSERT_NO_FATAL_FAILURE(Sort(&rank));
    ASSERT_NO_FATAL_FAILURE(RunExperts(&rank));
  }
  for (const Rank& from : ranks) {
    for (const Rank& to : ranks) {
      const MessageParts &sent = from.plan.combine_send, &received = to.plan.combine_recv;
      ASSERT_NO_FATAL_FAILURE(Carry(Bytes(from.answers, sent.offsets[to.rank], sent.bytes[to.rank]),
                                    Bytes(to.all_y, received.offsets[from.rank], received.bytes[from.rank])));
    }
  }
  for (const Rank& rank : ranks) {
    const std::vector<int32_t> choices = Choices(c(), rank.rank), output_row = OnHost<int32_t>(rank.output_row);
    const std::vector<uint16_t> y = OnHost<uint16_t>(rank.all_y);
    for (size_t i = 0; i < choices.size(); ++i) {
      ASSERT_EQ(output_row[i] == -1, choices[i] == -1) << "rank " << rank.rank << " choice " << i;
      if (choices[i] == -1) continue;
      const auto row = y.begin() + output_row[i] * c().width;
      EXPECT_EQ(std::vector<uint16_t>(row, row + c().width),
                Marked(RowOf(c(), rank.rank, static_cast<int64_t>(i) / c().top_k), choices[i]))
          << "rank " << rank.rank << " choice " << i;
    }
  }
}

// Each row once to each rank that wants it, in the batch's order; so counts and heads say.
TEST_P(RowExchangeTest, BlocksHaveEachRowOnceInOrder) {
  std::vector<Rank> ranks(world());
  for (int r = 0; r < world(); ++r) {
    ranks[r].rank = r;
    ASSERT_NO_FATAL_FAILURE(Route(&ranks[r]));
  }
  for (Rank& rank : ranks) {
    ASSERT_NO_FATAL_FAILURE(Pack(&ranks, &rank));
    const auto rank_of = OnHost<int32_t>(rank.routes.places.rank_of), counts = OnHost<int32_t>(rank.counts);
    const std::vector<uint16_t> send = OnHost<uint16_t>(rank.send);
    for (int to = 0; to < world(); ++to) {
      std::vector<uint16_t> rows;
      int32_t num_rows = 0, num_pairs = 0;
      for (int64_t t = 0; t < c().rows[rank.rank]; ++t) {
        const auto begin = rank_of.begin() + t * c().top_k;
        const auto pairs = static_cast<int32_t>(std::count(begin, begin + c().top_k, to));
        num_pairs += pairs;
        if (pairs == 0) continue;
        ++num_rows;
        const std::vector<uint16_t> row = RowOf(c(), rank.rank, t);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      EXPECT_EQ(counts[2 * to], num_rows);
      EXPECT_EQ(counts[2 * to + 1], num_pairs);
      const RowBlock& block = rank.plan.send.of[to];
      if (to == rank.rank || block.max_pairs == 0) continue;
      int32_t head[2];
      std::memcpy(head, send.data() + block.head_row * c().width, sizeof(head));
      EXPECT_EQ(head[0], num_rows);
      EXPECT_EQ(head[1], num_pairs);
      const auto first = send.begin() + block.first_row * c().width;
      EXPECT_EQ(std::vector<uint16_t>(first, first + num_rows * c().width), rows);
    }
  }
}

// Whatever a peer sends, nothing outside its block or this rank's slots is reachable.
class RowExchangeFaultTest : public OnDeviceTest {};

TEST_F(RowExchangeFaultTest, ABlockThatDoesNotHoldTogether) {
  const Stream& stream = stream_->get();
  const ExpertLayout layout = ExpertLayout::Contiguous(4, 2);
  const ExchangeShape shape{&layout, 0, 0, 2, 64};
  const auto plan = BoundedPlan(shape, 3);
  ASSERT_TRUE(plan.ok());
  const RowBlock& block = plan->recv.of[1];
  ASSERT_EQ(block.max_pairs, 6);
  Tensor none(DType::kI32, {0, 2});
  const Tensor no_choice = *CopyToDevice(stream, none);
  struct Bad {
    int32_t rows, pairs, pair_row, pair_slot;
    std::vector<int32_t> slots;  // on a device
  };
  const std::vector<Bad> blocks = {{2, 2, 0, 2, {-1, 0, -1, -1, -1, -1}},   {2, 2, 3, 1, {-1, 0, -1, -1, -1, -1}},
                                   {2, 2, -1, 1, {-1, 0, -1, -1, -1, -1}},  {2, 2, 0, -7, {-1, 0, -1, -1, -1, -1}},
                                   {2, 1 << 30, 0, 1, {1, 0, 0, 0, 0, 0}},  {9, 2, 0, 1, {1, 0, -1, -1, -1, -1}},
                                   {-1, -1, 0, 1, {-1, -1, -1, -1, -1, -1}}};
  for (const Bad& bad : blocks) {
    Tensor recv(DType::kBf16, {plan->recv.num_rows, 32});
    std::memset(recv.view().raw(), 0, recv.bytes());
    auto* const head = reinterpret_cast<int32_t*>(static_cast<char*>(recv.view().raw()) + block.head_row * 64);
    head[0] = bad.rows;
    head[1] = bad.pairs;
    head[2] = bad.pair_row;
    head[2 + block.max_pairs] = bad.pair_slot;
    const Tensor received = *CopyToDevice(stream, recv), slots = *CopyToDevice(stream, Tensor(DType::kI32, {6}));
    const absl::Status read = ReadPairs(
        stream, plan->recv, {.rank_of = no_choice, .slot_of = no_choice, .first_of = no_choice}, received, 2, slots);
    if (TestDevice().is_cpu()) {
      EXPECT_EQ(read.code(), absl::StatusCode::kInternal) << read;
      continue;
    }
    ASSERT_TRUE(read.ok()) << read;
    const Tensor got = *CopyToHost(stream, slots);
    EXPECT_EQ(std::vector<int32_t>(got.data<int32_t>(), got.data<int32_t>() + 6), bad.slots);
  }
}

}  // namespace
}  // namespace switchyard
