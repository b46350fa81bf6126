// Values of sharded blocks arrive whole on the ranks that write them, in rounds of any size.
#include "workers/train/parameters/shard_stream.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/tensor/tensor.h"
#include "workers/train/parameters/parameter_files.h"

namespace switchyard::train {
namespace {

struct Cut {
  std::vector<int64_t> parts;  // elements of each
  int32_t writer = 0;
  bool frozen = false;
};

// Of a number of ranks: the first one writes the most, the last one nothing; a block is on one rank alone, others have
// parts of all sizes.
std::vector<Cut> Cuts(int world) {
  const int32_t second = world > 2 ? 1 : 0;
  return {{.parts = {40, 23}, .writer = 0},
          {.parts = {1}, .writer = second},
          {.parts = {90, 1, 9}, .writer = 0, .frozen = true},
          {.parts = {17}, .writer = second},
          {.parts = {55}, .writer = 0}};
}

float ValueOf(size_t block, size_t kept, int64_t element) {
  return static_cast<float>(block * 10'000 + kept * 1'000) + static_cast<float>(element);
}

// A rank's blocks, and the tensors of the model that they belong to.
struct Blocks {
  Blocks(int world, int rank) {
    const std::vector<Cut> cuts = Cuts(world);
    for (size_t b = 0; b < cuts.size(); ++b) {
      ParameterBlock& block = blocks.emplace_back();
      int64_t size = 0;
      for (const int64_t count : cuts[b].parts) {
        block.parts.push_back(
            {.name = absl::StrCat("dense", b, ".", size), .shape = {count}, .rows = count, .columns = 1});
        block.parts.back().first_row = size;
        size += count;
      }
      block.frozen = cuts[b].frozen;
      block.writer = cuts[b].writer;
      block.tensor = tensors.emplace_back(std::make_unique<Tensor>(DType::kF32, Shape{size})).get();
      block.place = rank;
      // Unequal parts, the first of some empty.
      block.borders = {0};
      for (int r = 1; r < world; ++r) block.borders.push_back(size * r * static_cast<int64_t>(b % 3) / (2 * world));
      block.borders.push_back(size);
      const ElementRange own = block.own();
      for (size_t kept = 0; kept < StateOf(block).size(); ++kept) {
        Tensor& state = block.*kState[kept] = Tensor(DType::kF32, {own.count, 1});
        for (int64_t i = 0; i < own.count; ++i) state.data<float>()[i] = ValueOf(b, kept, own.begin + i);
      }
    }
  }
  // Every rank writes one expert, which is not sharded.
  void AddExpert(int rank) {
    ParameterBlock& block = blocks.emplace_back();
    block.shard = model::Shard::kExpert;
    block.parts.push_back({.name = absl::StrCat("expert", rank), .shape = {8}, .rows = 8, .columns = 1});
    block.tensor = tensors.emplace_back(std::make_unique<Tensor>(DType::kF32, Shape{8})).get();
    for (const auto state : StateOf(block)) block.*state = Tensor::Zeros(DType::kF32, {8, 1});
  }

  std::vector<std::unique_ptr<Tensor>> tensors;
  std::vector<ParameterBlock> blocks;
};

// What a rank reads.
std::vector<float> Expected(int world, int rank, bool with_weights) {
  std::vector<float> values;
  const auto append = [&](bool weights) {
    const std::vector<Cut> cuts = Cuts(world);
    for (size_t b = 0; b < cuts.size(); ++b) {
      int64_t first = 0;
      for (const int64_t count : cuts[b].parts) {
        for (size_t kept = 0; kept < (weights || cuts[b].frozen ? 1 : 3); ++kept) {
          for (int64_t i = first; i < first + count; ++i) {
            if (cuts[b].writer == rank) values.push_back(ValueOf(b, kept, i));
          }
        }
        first += count;
      }
    }
  };
  if (with_weights) append(true);
  append(false);
  return values;
}

TEST(ShardStreamTest, EachRankReadsWhatItWrites) {
  for (const int world : {1, 2, 3, 4}) {
    for (const int64_t round : {1, 7, 1000}) {
      for (const bool with_weights : {false, true}) {
        test::ExpectRanksOk(test::Backend::kLocal, world, [&](comm::Communicator* comm) -> absl::Status {
          const Blocks mine(world, comm->rank());
          ShardStream stream(comm, mine.blocks, {.with_weights = with_weights, .round_elements = round});
          const std::vector<float> expected = Expected(world, comm->rank(), with_weights);
          std::vector<float> values(expected.size());
          for (size_t begin = 0; begin < values.size(); begin += 13) {  // not a round's
            const size_t count = std::min<size_t>(13, values.size() - begin);
            RETURN_IF_ERROR(
                stream.Read(absl::MakeSpan(reinterpret_cast<char*>(values.data() + begin), count * sizeof(float))));
          }
          RETURN_IF_ERROR(stream.Finish());
          EXPECT_EQ(values, expected) << world << " ranks, rounds of " << round << ", rank " << comm->rank();
          return stream.Finish();  // nothing is left
        });
      }
    }
  }
}

TEST(ShardStreamTest, OverConnections) {
  test::ExpectRanksOk(test::Backend::kSocket, 3, [&](comm::Communicator* comm) -> absl::Status {
    const Blocks mine(3, comm->rank());
    ShardStream stream(comm, mine.blocks, {.round_elements = 7});
    const std::vector<float> expected = Expected(3, comm->rank(), false);
    std::vector<float> values(expected.size());
    RETURN_IF_ERROR(stream.Read(absl::MakeSpan(reinterpret_cast<char*>(values.data()), values.size() * sizeof(float))));
    EXPECT_EQ(values, expected);
    return stream.Finish();
  });
}

// A rank that gives up says so at once, and so do those that wait for it when they give up, too.
TEST(ShardStreamTest, GivingUpEndsTheWait) {
  std::atomic<bool> given_up = false;
  absl::Notification waits;  // rank 0
  std::vector<std::unique_ptr<comm::Communicator>> ranks = test::MakeGroup(test::Backend::kLocal, 2);
  const absl::Time begin = absl::Now();
  const std::vector<absl::Status> ended = test::RunRanks(&ranks, [&](comm::Communicator* comm) -> absl::Status {
    const Blocks mine(2, comm->rank());
    if (comm->rank() == 1) {
      ShardStream stream(comm, mine.blocks, {.given_up = [] { return true; }, .round_elements = 7});
      const absl::Status status = stream.Finish();
      EXPECT_TRUE(comm->status().ok()) << "between two rounds it does not end the group";
      EXPECT_TRUE(waits.WaitForNotificationWithTimeout(absl::Seconds(20)));
      given_up = true;
      return status;
    }
    int asked = 0;  // before a round, then while it waits for it
    const auto asks = [&] {
      if (++asked == 2) waits.Notify();
      return given_up.load();
    };
    ShardStream stream(comm, mine.blocks, {.given_up = asks, .round_elements = 7});
    std::vector<char> values(100 * sizeof(float));
    return stream.Read(absl::MakeSpan(values));
  });
  for (const absl::Status& status : ended) {
    EXPECT_EQ(status, absl::CancelledError("the save is given up"));
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20)) << "the limit of a round is an hour";
}

// Writes a rank's files as WriteFiles does: the tensors' contents one after another.
absl::Status WriteAll(const std::vector<checkpoint::CheckpointFile>& files, const std::string& stops_at,
                      const absl::Notification& until) {
  for (const checkpoint::CheckpointFile& file : files) {
    for (const checkpoint::TensorToWrite& tensor : file.tensors) {
      RETURN_IF_ERROR(tensor.contents([&](absl::string_view) {
        const bool goes_on = tensor.name != stops_at || until.WaitForNotificationWithTimeout(absl::Seconds(20));
        return goes_on ? absl::OkStatus() : absl::DeadlineExceededError("the other rank waits for this one's expert");
      }));
    }
  }
  return absl::OkStatus();
}

// Ranks exchange all before any of them writes the optimizer's values of its experts: a slow one delays no other.
TEST(ShardStreamTest, ExpertsOfARankDelayNoOther) {
  absl::Notification first_is_done;
  test::ExpectRanksOk(test::Backend::kLocal, 2, [&](comm::Communicator* comm) -> absl::Status {
    const int rank = comm->rank();
    Blocks mine(2, rank);
    mine.AddExpert(rank);
    std::swap(mine.blocks.front(), mine.blocks.back());  // in the order of a model they need not be the last
    ShardStream stream(comm, mine.blocks, {.with_weights = true, .round_elements = 7});
    const std::vector<checkpoint::CheckpointFile> files = ParameterFiles(mine.blocks, rank, 2, DType::kF32, &stream);
    absl::Status status = WriteAll(files, rank == 1 ? "expert1.master" : "", first_is_done);
    if (status.ok()) status = stream.Finish();
    if (!status.ok()) comm->Abort(status.message());
    if (rank == 0) first_is_done.Notify();
    return status;
  });
}

TEST(ShardStreamTest, DenseTensorsAreBeforeExperts) {
  Blocks mine(1, 0);
  mine.AddExpert(0);
  std::swap(mine.blocks.front(), mine.blocks.back());
  for (const checkpoint::CheckpointFile& file : ParameterFiles(mine.blocks, 0, 1, DType::kF32)) {
    const auto is_expert = [](const checkpoint::TensorToWrite& tensor) { return tensor.name.starts_with("expert"); };
    EXPECT_TRUE(
        std::is_partitioned(file.tensors.begin(), file.tensors.end(), [&](const auto& t) { return !is_expert(t); }));
    EXPECT_TRUE(is_expert(file.tensors.back()));
  }
}

}  // namespace
}  // namespace switchyard::train
