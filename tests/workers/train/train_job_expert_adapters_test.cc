// Jobs that train adapters of experts: what each rank saves, with and without a copy, faults meanwhile, and attempts on
// other numbers of ranks.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/workers/train/hooked_file_system.h"
#include "tests/workers/train/parts_job_fixture.h"

namespace switchyard::train {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 40;
using Files = std::map<std::string, std::string>;

class TrainJobExpertAdaptersTest : public PartsJobFixture {
 protected:
  // An attempt in which a rank has no memory for copies once it trains.
  AttemptOptions ShortOfMemory(int world, int short_rank) {
    training_ = false;
    AttemptOptions options = {.world = world};
    options.memory = [this, short_rank](int rank) {
      const int64_t bytes = rank == short_rank && training_ ? 1000 : kPlenty;
      return MachineMemory{.total_bytes = bytes, .pools = {{.name = "", .available_bytes = bytes}}};
    };
    options.on_step = [this](TrainJob*, comm::Communicator*, const StepProgress&) { training_ = true; };
    return options;
  }
  static std::vector<double> Losses(const std::vector<RankStory>& stories) {
    std::vector<double> losses;
    for (const StepProgress& step : stories[0].steps) losses.push_back(step.report.loss);
    return losses;
  }
  static int64_t BytesOf(const Files& tensors, const std::string& part) {
    int64_t bytes = 0;
    for (const auto& [name, values] : tensors) bytes += absl::StrContains(name, part) ? std::ssize(values) : 0;
    return bytes;
  }

  // Calls it on rank 0's thread that writes, when it opens a step's file of adapters: the others then wait for it.
  static void BeforeAdaptersAreWritten(AttemptOptions* options, int64_t step, std::function<absl::Status()> call) {
    const auto before = [step, call = std::move(call)](const std::string& path) {
      const bool now = absl::StartsWith(path, absl::StrCat(checkpoint::StepFolder(step), ".")) &&
                       absl::StrContains(path, "adapter_model");
      return now ? call() : absl::OkStatus();
    };
    options->wrap_files = [before](std::unique_ptr<checkpoint::FileSystem> files, int) {
      return std::make_unique<HookedFileSystem>(std::move(files), nullptr, nullptr, before);
    };
  }

  std::atomic<bool> training_ = false;
};

// Each rank saves what training needs of its own experts' adapters; rank 0 all of them, in PEFT's tensors of all
// experts.
TEST_F(TrainJobExpertAdaptersTest, AdaptersOfExpertsAreSavedAsPeftDoes) {
  for (const int world : {1, 2, 3, 4}) {
    ASSERT_EQ(Run(OfExpertsOnAny(), {.world = world})[0].end.outcome, jobs::TrainOutcome::kFinished);
    const nlohmann::json config = nlohmann::json::parse(ReadAll(StepPath(12) + "/adapter_config.json"));
    EXPECT_EQ(config["target_modules"], nlohmann::json({"v_proj"}));
    EXPECT_EQ(config["target_parameters"], nlohmann::json({"gate_up_proj", "down_proj"}));
    const std::map<std::string, std::string> tensors = TensorsOf(StepPath(12), "adapter_model.safetensors");
    EXPECT_EQ(tensors.size(), 2u * 3 * 2);
    std::map<std::string, std::string> state;
    for (int r = 0; r < world; ++r) {
      state.merge(TensorsOf(StepPath(12), absl::StrCat("optimizer-rank0000", r, ".safetensors")));
    }
    EXPECT_EQ(state.size(), 3u * 2 * 2 * (1 + 8 * 2));  // kinds, layers, A and B, matrices
    constexpr int64_t kExperts = 8, kRank = 3, kHidden = 48, kFfn = 24;
    for (const int layer : {0, 1}) {
      const auto expect = [&](const char* module, const char* projection, int64_t n, int64_t k) {
        const std::string fused = absl::StrCat("base_model.model.model.layers.", layer, ".mlp.experts", module);
        const std::string all_a = tensors.at(fused + ".lora_A.weight"), all_b = tensors.at(fused + ".lora_B.weight");
        ASSERT_EQ(all_a.size(), static_cast<size_t>(kExperts * kRank * k) * 4);
        ASSERT_EQ(all_b.size(), static_cast<size_t>(n * kRank * kExperts) * 4);
        for (int64_t e = 0; e < kExperts; ++e) {
          const std::string own =
              absl::StrCat("base_model.model.model.layers.", layer, ".mlp.experts.", e, ".", projection);
          const std::string a = state.at(own + ".lora_A.weight.master"), b = state.at(own + ".lora_B.weight.master");
          EXPECT_EQ(all_a.substr(static_cast<size_t>(e * kRank * k) * 4, a.size()), a) << own;
          EXPECT_NE(b, std::string(b.size(), '\0')) << own;
          for (int64_t i = 0; i < n * kRank; ++i) {
            const int64_t at = i / kRank * kRank * kExperts + i % kRank * kExperts + e;
            ASSERT_EQ(all_b.substr(static_cast<size_t>(at) * 4, 4), b.substr(static_cast<size_t>(i) * 4, 4)) << own;
          }
        }
      };
      expect(".base_layer", "gate_up_proj", 2 * kFfn, kHidden);
      expect("", "down_proj", kHidden, kFfn);
    }
    ForgetJob();
  }
}

// Without memory for copies rank 0 gets the adapters while it writes them: the same files.
TEST_F(TrainJobExpertAdaptersTest, SavesWithoutACopy) {
  for (const int world : {1, 3}) {
    const Files whole = Undisturbed(OfExpertsOnAny(), world);
    for (const int short_rank : std::set<int>{0, world - 1}) {
      const std::vector<RankStory> stories = Run(OfExpertsOnAny(), ShortOfMemory(world, short_rank));
      ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
      EXPECT_TRUE(FilesOfStep(12) == whole) << world << " ranks, rank " << short_rank;
      ForgetJob();
    }
  }
}

// Rank 0 copies its own state and all experts' adapters, or nothing: it needs room for both.
TEST_F(TrainJobExpertAdaptersTest, ACopyNeedsRoomForAllExperts) {
  ASSERT_EQ(Run(OfExperts(), {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
  const int64_t state = BytesOf(TensorsOf(StepPath(12), "optimizer-rank00000.safetensors"), "");
  const int64_t experts = BytesOf(TensorsOf(StepPath(12), "adapter_model.safetensors"), ".mlp.experts");
  ASSERT_GT(experts, 0);
  // Whether a step is trained while the first write of a save waits for it.
  const auto trains_meanwhile = [&](int64_t room, absl::Duration patience) {
    ForgetJob();
    training_ = false;
    absl::Mutex mu;
    int64_t steps = 0;
    bool waited = false, trained = false;
    AttemptOptions options = {.world = 2};
    options.memory = [&](int rank) {
      const int64_t bytes = rank == 0 && training_ ? room : kPlenty;
      return MachineMemory{.total_bytes = bytes, .pools = {{.name = "", .available_bytes = bytes}}};
    };
    options.on_step = [&](TrainJob*, comm::Communicator*, const StepProgress& progress) {
      training_ = true;
      absl::MutexLock lock(&mu);
      steps = progress.step;
    };
    const auto wait = [&](const std::string& path) {
      absl::MutexLock lock(&mu);
      if (waited || !absl::StartsWith(path, "step-00000004.")) return absl::OkStatus();
      waited = true;
      const auto passed = [&] { return steps > 4; };
      trained = mu.AwaitWithTimeout(absl::Condition(&passed), patience);
      return absl::OkStatus();
    };
    options.wrap_files = [&](std::unique_ptr<checkpoint::FileSystem> files,
                             int rank) -> std::unique_ptr<checkpoint::FileSystem> {
      if (rank != 0) return files;
      return std::make_unique<HookedFileSystem>(std::move(files), wait);
    };
    EXPECT_EQ(Run(OfExperts(), options)[0].end.outcome, jobs::TrainOutcome::kFinished);
    EXPECT_TRUE(waited);
    return trained;
  };
  EXPECT_TRUE(trains_meanwhile(state + experts, absl::Minutes(1)));
  EXPECT_FALSE(trains_meanwhile(state + experts - 1, absl::Seconds(1)));
}

// Rank 0's disk is full while the others send it their adapters: all ranks end, and another attempt goes on.
TEST_F(TrainJobExpertAdaptersTest, AFullDiskLosesNothing) {
  const Files whole = Undisturbed(OfExpertsOnAny(), 3);
  const absl::Time begin = absl::Now();
  AttemptOptions options = ShortOfMemory(3, 1);
  BeforeAdaptersAreWritten(&options, 8, [] { return absl::ResourceExhaustedError("No space left on device"); });
  ExpectEnd(Run(OfExpertsOnAny(), options), jobs::TrainOutcome::kLost, absl::StatusCode::kResourceExhausted,
            "rank 0: adapter_model.safetensors: No space");
  EXPECT_LT(absl::Now() - begin, absl::Seconds(50)) << "ranks wait for a minute at most";
  const std::vector<RankStory> resumed = Run(OfExpertsOnAny(), {.world = 3, .attempt = 2});
  EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
  EXPECT_EQ(resumed[0].start_step, 4);
  EXPECT_TRUE(FilesOfStep(12) == whole);
}

// A rank is lost while training waits for the first save; the next attempt begins anew.
TEST_F(TrainJobExpertAdaptersTest, ALostRankLosesNothing) {
  const Files whole = Undisturbed(OfExpertsOnAny(), 3);
  AttemptOptions options = ShortOfMemory(3, 2);
  std::atomic<comm::Communicator*> group = nullptr;
  options.on_step = [&](TrainJob*, comm::Communicator* comm, const StepProgress&) {
    training_ = true;
    group = comm;
  };
  BeforeAdaptersAreWritten(&options, 4, [&] {
    group.load()->Abort("broken by the test");
    return absl::OkStatus();
  });
  const std::vector<RankStory> lost = Run(OfExpertsOnAny(), options);
  for (const RankStory& story : lost) EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kLost) << story.end.status;
  EXPECT_TRUE(lost[0].saved.empty());
  const std::vector<RankStory> second = Run(OfExpertsOnAny(), {.world = 3, .attempt = 2});
  EXPECT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
  EXPECT_EQ(second[0].start_step, 0);
  EXPECT_TRUE(FilesOfStep(12) == whole);
}

// A stop while ranks exchange what rank 0 writes ends all at once.
TEST_F(TrainJobExpertAdaptersTest, StopsWhileItSaves) {
  AttemptOptions options = ShortOfMemory(3, 0);
  std::atomic<TrainJob*> first = nullptr;
  options.before = [&](TrainJob* job, int rank) {
    if (rank == 0) first = job;
  };
  absl::BlockingCounter others_ended(2);
  options.after = [&](int rank) {
    if (rank > 0) others_ended.DecrementCount();
  };
  BeforeAdaptersAreWritten(&options, 4, [&] {
    first.load()->Stop(jobs::StopKind::kNow);
    others_ended.Wait();
    return absl::OkStatus();
  });
  const absl::Time begin = absl::Now();
  const std::vector<RankStory> stories = Run(OfExpertsOnAny(), options);
  for (const RankStory& story : stories) EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kStopped) << story.end.status;
  EXPECT_EQ(stories[0].steps.size(), 4u);
  EXPECT_TRUE(stories[0].saved.empty());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(50));
}

// With the checkpoint of the best evaluation kept an interrupted job ends with the same bits, copied or not.
TEST_F(TrainJobExpertAdaptersTest, KeepsTheBest) {
  jobs::JobSpec spec = OfExperts();
  spec.evaluate_every_steps = 3;
  spec.checkpoints.keep_best = true;
  const Files whole = Undisturbed(spec, 2);
  EXPECT_TRUE(Interrupted(spec, 2) == whole);
  ASSERT_EQ(Run(spec, ShortOfMemory(2, 1))[0].end.outcome, jobs::TrainOutcome::kFinished);
  EXPECT_TRUE(FilesOfStep(12) == whole);
}

// In chunks, whose bits are others.
TEST_F(TrainJobExpertAdaptersTest, TrainInChunks) {
  jobs::JobSpec spec = OfExperts();
  const Files uncut = Undisturbed(spec, 2);
  spec.communication.granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = 3};
  const Files whole = Undisturbed(spec, 2);
  EXPECT_FALSE(whole == uncut);
  EXPECT_TRUE(Interrupted(spec, 2) == whole);
}

// An attempt on another number of ranks goes on with each expert's own adapters: in fp64 the losses are those of an
// undisturbed job but for rounding.
TEST_F(TrainJobExpertAdaptersTest, MoveToOtherRanks) {
  jobs::JobSpec spec = OfExpertsOnAny();
  spec.dtype = jobs::TrainDType::kF64;
  const std::vector<double> whole = Losses(Run(spec, {.world = 2}));
  ASSERT_EQ(whole.size(), 12u);
  for (const auto& [from, to] : {std::pair(4, 2), std::pair(2, 3), std::pair(3, 1)}) {
    ForgetJob();
    AttemptOptions first = {.world = from};
    first.on_step = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == 6) job->Stop(jobs::StopKind::kSave);
    };
    ASSERT_EQ(Run(spec, first)[0].end.outcome, jobs::TrainOutcome::kStopped);
    const std::vector<RankStory> moved = Run(spec, {.world = to, .attempt = 2});
    ASSERT_EQ(moved[0].end.outcome, jobs::TrainOutcome::kFinished) << moved[0].end.status;
    EXPECT_EQ(moved[0].start_step, 6);
    const std::vector<double> rest = Losses(moved);
    ASSERT_EQ(rest.size(), 6u);
    for (size_t i = 0; i < rest.size(); ++i) EXPECT_NEAR(rest[i], whole[6 + i], 1e-9 * whole[6 + i]) << from << to;
  }
}

TEST_F(TrainJobExpertAdaptersTest, ExpertsWithoutGatesHaveNoAdapters) {
  UseModel("gpt2-top2");
  jobs::JobSpec spec = OfExperts();
  ExpectEnd(Run(spec, {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "lora.targets: gate_up_proj: experts of ");
}

}  // namespace
}  // namespace switchyard::train
