// The ops of an exchange on the test's device: ranks share it, and the test carries their blocks and answers.
#include "workers/ops/exchange/row_exchange.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/placement/route/replica_index.h"
#include "scheduler/placement/route/split.h"
#include "tests/workers/moe/row_exchange_fixture.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/moe/dispatch/device_split.h"
#include "workers/moe/dispatch/split_cursor.h"
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {
namespace {

INSTANTIATE_TEST_SUITE_P(Cases, TokenDispatcherTest,
                         testing::Combine(testing::ValuesIn(ExchangeCases()), testing::Bool()), [](const auto& i) {
                           return absl::StrCat(std::get<0>(i.param).name, std::get<1>(i.param) ? "_bounded" : "_exact");
                         });

TEST_P(TokenDispatcherTest, PlacesAreTheLayouts) {
  for (int r = 0; r < world(); ++r) {
    ExchangeRank rank;
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

// A split by counts, of whose rows an exchange has a part.
TEST_P(TokenDispatcherTest, DealtRowsAreTheSplits) {
  placement::Placement placement{.num_experts = c().num_experts, .slots = c().residents};
  std::vector<int32_t> counts(static_cast<size_t>(world()) * static_cast<size_t>(c().num_experts));
  for (int r = 0; r < world(); ++r) {
    for (const int32_t expert : Choices(c(), r)) {
      if (expert >= 0) ++counts[static_cast<size_t>(r * c().num_experts + expert)];
    }
  }
  const placement::SplitTable split =
      placement::SplitByCounts({world(), c().num_experts, counts}, placement::ReplicaIndex(placement));
  const auto group = comm::MakeLocalGroup(world());
  for (int r = 0; r < world(); ++r) {
    const std::vector<int32_t> choices = Choices(c(), r);
    const int64_t rows = c().rows[r], top_k = c().top_k;
    const Tensor gated = OnDevice(DType::kI32, {rows, top_k}, choices.data());
    const Tensor found = OnDevice(DType::kI32, {3 * rows, top_k});
    SplitCursor cursor(&split, r), sent(&split, r);
    DeviceSplit on_device;
    for (int chunk = 0; chunk < 2; ++chunk) {
      const LayerContext layer = {.x = TensorView(nullptr, DType::kF32, {rows, 1}),
                                  .topk_idx = gated,
                                  .layout = &layout_,
                                  .split = &sent,
                                  .chunk = chunk,
                                  .num_chunks = 2};
      const pipeline::ChunkRange part = layer.rows();
      const Stream& stream = *stream_;
      const auto table = on_device.Send({.stream = &stream, .comm = group[r].get()}, layer);
      ASSERT_TRUE(table.ok()) << table.status();
      const ops::ExpertPlaces places = {.rank_of = found.view().Rows(0, part.count),
                                        .slot_of = found.view().Rows(rows, part.count),
                                        .first_of = found.view().Rows(2 * rows, part.count)};
      ASSERT_TRUE(
          ops::FindExpertPlaces(*stream_, gated.view().Rows(part.begin, part.count), *table, c().first_token, places)
              .ok());
      const auto rank_of = OnHost<int32_t>(places.rank_of), slot_of = OnHost<int32_t>(places.slot_of);
      for (size_t i = 0; i < rank_of.size(); ++i) {
        const int32_t expert = choices[static_cast<size_t>(part.begin * top_k) + i];
        const int32_t rank = expert < 0 ? -1 : cursor.Next(expert);
        EXPECT_EQ(rank_of[i], rank) << "rank " << r << " choice " << i << " from row " << part.begin;
        EXPECT_EQ(slot_of[i], expert < 0 ? -1 : layout_.SlotOn(rank, expert));
      }
    }
  }
}

TEST_P(TokenDispatcherTest, EveryChoiceComesBackFromItsExpert) {
  std::vector<ExchangeRank> ranks(world());
  for (int r = 0; r < world(); ++r) {
    ranks[r].rank = r;
    ASSERT_NO_FATAL_FAILURE(Route(&ranks[r]));
  }
  for (ExchangeRank& rank : ranks) ASSERT_NO_FATAL_FAILURE(Pack(&ranks, &rank));
  for (const ExchangeRank& from : ranks) {
    for (const ExchangeRank& to : ranks) {
      const MessageParts &sent = from.plan.dispatch_send, &received = to.plan.dispatch_recv;
      ASSERT_EQ(sent.bytes[to.rank], received.bytes[from.rank]);
      ASSERT_NO_FATAL_FAILURE(Carry(Bytes(from.send, sent.offsets[to.rank], sent.bytes[to.rank]),
                                    Bytes(to.recv, received.offsets[from.rank], received.bytes[from.rank])));
    }
  }
  for (ExchangeRank& rank : ranks) {
    ASSERT_NO_FATAL_FAILURE(Sort(&rank));
    ASSERT_NO_FATAL_FAILURE(RunExperts(&rank));
  }
  for (const ExchangeRank& from : ranks) {
    for (const ExchangeRank& to : ranks) {
      const MessageParts &sent = from.plan.combine_send, &received = to.plan.combine_recv;
      ASSERT_NO_FATAL_FAILURE(Carry(Bytes(from.answers, sent.offsets[to.rank], sent.bytes[to.rank]),
                                    Bytes(to.all_y, received.offsets[from.rank], received.bytes[from.rank])));
    }
  }
  for (const ExchangeRank& rank : ranks) {
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
TEST_P(TokenDispatcherTest, BlocksHaveEachRowOnceInOrder) {
  std::vector<ExchangeRank> ranks(world());
  for (int r = 0; r < world(); ++r) {
    ranks[r].rank = r;
    ASSERT_NO_FATAL_FAILURE(Route(&ranks[r]));
  }
  for (ExchangeRank& rank : ranks) {
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
      const ops::RowBlock& block = rank.plan.send.of[to];
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
class TokenDispatcherFaultTest : public OnDeviceTest {};

TEST_F(TokenDispatcherFaultTest, ABlockThatDoesNotHoldTogether) {
  const Stream& stream = stream_->get();
  const ExpertLayout layout = ExpertLayout::Contiguous(4, 2);
  const DispatchShape shape{&layout, 0, 0, 2, 64};
  const auto plan = BoundedPlan(shape, 3);
  ASSERT_TRUE(plan.ok());
  const ops::RowBlock& block = plan->recv.of[1];
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
    const absl::Status read = ops::ReadPairs(
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
}  // namespace switchyard::moe
