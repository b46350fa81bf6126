// Adapters of all experts arrive whole on rank 0, in PEFT's tensors, in rounds of any size.
#include "workers/train/parameters/expert_adapter_tensors.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/train/adapter_golden.h"
#include "tests/workers/train/training_group.h"

namespace switchyard::train {
namespace {

constexpr char kModel[] = "tests/golden/models/olmoe-clip";
constexpr int64_t kExperts = 8;
using Targets = std::vector<std::string>;

// A group in which every number of every adapter is another one.
struct Group {
  explicit Group(int world, const Targets& targets, DType dtype = DType::kF32,
                 test::Backend backend = test::Backend::kLocal) {
    adapters = {.rank = 3, .scale = 2, .targets = targets};
    TrainingGroupOptions options = {.dtype = dtype, .world = world};
    options.adapters = adapters;
    options.form = [backend](int ranks) { return test::MakeGroup(backend, ranks); };
    group = std::make_unique<TrainingGroup>(kModel, options);
    masters = group->Masters();
    double next = 1;
    for (auto& [name, values] : masters) {
      for (double& value : values) value = next++;
    }
    group->SetMasters(masters);
  }
  // Of all experts, as rank 0 is to get them.
  AdapterValues OfExperts() const {
    AdapterValues some;
    for (const auto& [name, values] : masters) {
      if (absl::StrContains(name, ".experts.")) some[name] = values;
    }
    return some;
  }
  ExpertAdapterTensors TensorsOf(int rank, ExpertAdapterOptions options) const {
    return ExpertAdapterTensors(group->comm(rank), group->parameters(rank), std::move(options));
  }

  model::AdapterDesc adapters;
  std::unique_ptr<TrainingGroup> group;
  AdapterValues masters;
};

// What a rank wrote.
struct Written {
  AdapterValues tensors = {};
  int64_t columns = 0, longest = 0;  // the most columns of a tensor; bytes of the longest piece
};

// As a save does; ranks but the first write nothing.
absl::Status Write(ExpertAdapterTensors* tensors, Written* written) {
  for (const checkpoint::TensorToWrite& tensor : tensors->ToWrite()) {
    std::string bytes;
    RETURN_IF_ERROR(tensor.contents([&](absl::string_view piece) {
      written->longest = std::max<int64_t>(written->longest, std::ssize(piece));
      bytes.append(piece.data(), piece.size());
      return absl::OkStatus();
    }));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    EXPECT_EQ(tensor.dtype, DType::kF32);
    EXPECT_EQ(std::ssize(values), tensor.shape[0] * tensor.shape[1]);
    written->columns = std::max(written->columns, tensor.shape[1]);
    EXPECT_TRUE(written->tensors.emplace(tensor.name, AdapterValues::mapped_type(values.begin(), values.end())).second);
  }
  return tensors->Finish();
}

TEST(ExpertAdapterTensorsTest, RankZeroWritesAllExperts) {
  for (const Targets& targets :
       {Targets{"v_proj", "gate_up_proj", "down_proj"}, Targets{"gate_up_proj"}, Targets{"down_proj"}}) {
    for (const int world : {1, 2, 3, 4}) {
      const Group ranks(world, targets);
      for (const int64_t round : {int64_t{1}, int64_t{100}, int64_t{1000}, kRoundElements}) {
        std::vector<Written> written(static_cast<size_t>(world));
        for (const absl::Status& status : ranks.group->OnEach([&](int rank) {
               ExpertAdapterTensors tensors = ranks.TensorsOf(rank, {.round_elements = round});
               return Write(&tensors, &written[static_cast<size_t>(rank)]);
             })) {
          EXPECT_TRUE(status.ok()) << status;
        }
        EXPECT_EQ(written[0].tensors.size(), targets.size() == 1 ? 4u : 8u);
        EXPECT_EQ(SplitFused(written[0].tensors, ranks.adapters, kExperts), ranks.OfExperts());
        EXPECT_LE(written[0].longest, 4 * std::max(round, written[0].columns)) << "no more memory than a round's";
        for (int r = 1; r < world; ++r) EXPECT_TRUE(written[static_cast<size_t>(r)].tensors.empty());
      }
    }
  }
}

// After that the parameters may change.
TEST(ExpertAdapterTensorsTest, RankZeroKeepsACopy) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    Group ranks(3, {"gate_up_proj", "down_proj"}, dtype);
    const AdapterValues wanted = ranks.OfExperts();
    int64_t bytes = 0;
    for (const auto& [name, values] : wanted) bytes += 4 * std::ssize(values);
    std::vector<std::unique_ptr<ExpertAdapterTensors>> kept;
    for (int r = 0; r < 3; ++r) {
      kept.push_back(std::make_unique<ExpertAdapterTensors>(ranks.group->comm(r), ranks.group->parameters(r),
                                                            ExpertAdapterOptions{.round_elements = 100}));
      EXPECT_EQ(kept.back()->BytesToKeep(), r == 0 ? bytes : 0);
    }
    for (const absl::Status& status :
         ranks.group->OnEach([&](int r) { return kept[static_cast<size_t>(r)]->Keep(absl::Minutes(1)); })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    for (auto& [name, values] : ranks.masters) std::fill(values.begin(), values.end(), -1);
    ranks.group->SetMasters(ranks.masters);
    for (const std::unique_ptr<ExpertAdapterTensors>& tensors : kept) {
      Written written;
      EXPECT_TRUE(Write(tensors.get(), &written).ok()) << "without the other ranks";
      EXPECT_EQ(SplitFused(written.tensors, ranks.adapters, kExperts), tensors == kept[0] ? wanted : AdapterValues());
    }
  }
}

TEST(ExpertAdapterTensorsTest, OverConnections) {
  const Group ranks(3, {"gate_up_proj", "down_proj"}, DType::kF32, test::Backend::kSocket);
  std::vector<Written> written(3);
  for (const absl::Status& status : ranks.group->OnEach([&](int rank) {
         ExpertAdapterTensors tensors = ranks.TensorsOf(rank, {.round_elements = 500});
         return Write(&tensors, &written[static_cast<size_t>(rank)]);
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(SplitFused(written[0].tensors, ranks.adapters, kExperts), ranks.OfExperts());
}

TEST(ExpertAdapterTensorsTest, AttentionsAloneNeedNoRounds) {
  const Group ranks(2, {"q_proj"});
  ExpertAdapterTensors tensors = ranks.TensorsOf(0, {});
  EXPECT_EQ(tensors.BytesToKeep(), 0);
  EXPECT_TRUE(tensors.ToWrite().empty());
  EXPECT_TRUE(tensors.Keep(absl::ZeroDuration()).ok()) << "without rank 1";
  EXPECT_TRUE(tensors.Finish().ok());
}

// A rank that gives up says so at once, and so do those that wait for it when they give up, too.
TEST(ExpertAdapterTensorsTest, GivingUpEndsTheWait) {
  const Group ranks(2, {"down_proj"});
  std::atomic<bool> given_up = false;
  absl::Notification waits;  // rank 0
  const absl::Time begin = absl::Now();
  const std::vector<absl::Status> ended = ranks.group->OnEach([&](int rank) {
    if (rank == 1) {
      const absl::Status status = ranks.TensorsOf(1, {.given_up = [] { return true; }}).Finish();
      EXPECT_TRUE(waits.WaitForNotificationWithTimeout(absl::Seconds(20)));
      given_up = true;
      return status;
    }
    int asked = 0;  // before a round, then while it waits for it
    const auto asks = [&] {
      if (++asked == 2) waits.Notify();
      return given_up.load();
    };
    ExpertAdapterTensors tensors = ranks.TensorsOf(0, {.given_up = asks});
    Written written;
    return Write(&tensors, &written);
  });
  for (const absl::Status& status : ended) EXPECT_EQ(status, absl::CancelledError("the save is given up"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20)) << "the limit of a round is an hour";
}

// A rank that is lost between two rounds ends the others' wait.
TEST(ExpertAdapterTensorsTest, ALostRankEndsTheWait) {
  for (const int lost : {0, 2}) {
    const Group ranks(3, {"gate_up_proj", "down_proj"});
    const absl::Time begin = absl::Now();
    const std::vector<absl::Status> ended = ranks.group->OnEach([&](int rank) {
      int rounds = 0;
      const auto breaks = [&] {
        if (rank == lost && ++rounds == 7) ranks.group->comm(rank)->Abort("broken by the test");
        return false;
      };
      ExpertAdapterTensors tensors = ranks.TensorsOf(rank, {.given_up = breaks, .round_elements = 100});
      return tensors.Keep(absl::Hours(1));
    });
    for (const absl::Status& status : ended) EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_LT(absl::Now() - begin, absl::Seconds(60));
  }
}

// The limit is one of all rounds: here of some 300, before each of which a rank waits for 0.1 s.
TEST(ExpertAdapterTensorsTest, ACopyHasOneDeadline) {
  const Group ranks(2, {"gate_up_proj", "down_proj"});
  const absl::Time begin = absl::Now();
  const std::vector<absl::Status> ended = ranks.group->OnEach([&](int rank) {
    const auto slow = [&] {
      if (rank == 1) absl::SleepFor(absl::Milliseconds(100));
      return false;
    };
    return ranks.TensorsOf(rank, {.given_up = slow, .round_elements = 1}).Keep(absl::Seconds(1));
  });
  EXPECT_FALSE(ended[0].ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended[0]) || absl::IsDeadlineExceeded(ended[1])) << ended[0];
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

// Two ranks that both have all experts.
TEST(ExpertAdapterTensorsTest, RanksThatDoNotFitAreNamed) {
  const Group one(1, {"gate_up_proj", "down_proj"});
  std::vector<std::unique_ptr<comm::Communicator>> ranks = test::MakeGroup(test::Backend::kLocal, 2);
  const std::vector<absl::Status> ended = test::RunRanks(&ranks, [&](comm::Communicator* comm) {
    return ExpertAdapterTensors(comm, one.group->parameters(0), {}).Keep(absl::Minutes(1));
  });
  EXPECT_EQ(ended[0].code(), absl::StatusCode::kInternal) << ended[0];
  EXPECT_THAT(std::string(ended[0].message()),
              testing::HasSubstr("collectives differ: the ranks sent 2304 values of base_model.model.model.layers.0."
                                 "mlp.experts.base_layer.lora_A.weight, rows from 0 on, expected 1152"));
}

}  // namespace
}  // namespace switchyard::train
