// What a worker, without its network, reports while it takes an assignment, and how that is stopped.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/serving/worker.h"

namespace switchyard::worker {
namespace {

using fleet::LoadPhase;
using fleet::LoadProgress;
using testing::Each;

struct Way {
  const char* name;
  std::string budget;
  placement::PlacementSettings placement;
  std::vector<LoadPhase> phases;
};

std::vector<Way> Ways() {
  std::vector<LoadPhase> resident = {LoadPhase::kWeights};
  if (!TestDevice().is_cpu()) resident.push_back(LoadPhase::kGraphs);
  const std::vector<LoadPhase> copied = {LoadPhase::kWeights, LoadPhase::kExperts};
  const placement::PlacementSettings agreed = {.mode = placement::PlacementMode::kAgreed, .spare_slots = 1};
  return {{"resident", "", {}, resident}, {"budget", "40%", {}, copied}, {"placement", "", agreed, copied}};
}

class WorkerStartTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasDevices(1)) GTEST_SKIP() << "skipped: no GPU";
  }
  std::unique_ptr<Worker> Open(const std::string& budget = "", Device device = TestDevice()) {
    WorkerOptions options;
    options.model_dir = "tests/golden/models/qwen3-qknorm";
    options.device = device;
    options.experts = {.budget = budget, .file_dir = dir_.path()};
    auto worker = Worker::Open(std::move(options));
    EXPECT_TRUE(worker.ok()) << worker.status();
    return *std::move(worker);
  }
  static fleet::EngineSettings SettingsOf(const placement::PlacementSettings& placement) {
    return {.kv_cache_bytes = 1 << 20,
            .max_num_seqs = 4,
            .max_batched_tokens = 32,
            .max_model_len = 128,
            .placement = placement};
  }
  static absl::Status Join(Worker* worker, int64_t epoch, const placement::PlacementSettings& placement,
                           Worker::Progress progress) {
    comm::InMemoryStore store;
    return worker->Join({.epoch = epoch, .store_token = "secret", .form_deadline_ms = 30'000}, "127.0.0.1",
                        SettingsOf(placement), &store, std::move(progress));
  }

  const model::TempDir dir_;
};

TEST_F(WorkerStartTest, PhasesComeInOrderAndEndComplete) {
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    const std::unique_ptr<Worker> worker = Open(way.budget);
    std::vector<LoadProgress> reports;
    const absl::Status joined = Join(worker.get(), 7, way.placement, [&](const LoadProgress& progress) {
      EXPECT_EQ(progress.epoch, 7);
      EXPECT_LE(progress.done, progress.total);
      reports.push_back(progress);
      return true;
    });
    ASSERT_TRUE(joined.ok()) << joined;
    std::vector<LoadPhase> phases;
    for (size_t i = 0; i < reports.size(); ++i) {
      if (phases.empty() || phases.back() != reports[i].phase) phases.push_back(reports[i].phase);
      const bool last = i + 1 == reports.size() || reports[i + 1].phase != reports[i].phase;
      if (last) {
        EXPECT_EQ(reports[i].done, reports[i].total);
      }
    }
    EXPECT_EQ(phases, way.phases);
    if (phases.back() == LoadPhase::kGraphs) {
      EXPECT_EQ(reports.back().total, worker->graph_counters().captured);
    }
  }
}

TEST_F(WorkerStartTest, EveryPhaseCanBeStopped) {
  for (const Way& way : Ways()) {
    const std::unique_ptr<Worker> worker = Open(way.budget);
    int64_t epoch = 0;
    for (const LoadPhase phase : way.phases) {
      SCOPED_TRACE(testing::Message() << way.name << " phase " << static_cast<int>(phase));
      const absl::Status stopped = Join(worker.get(), ++epoch, way.placement,
                                        [phase](const LoadProgress& progress) { return progress.phase != phase; });
      EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
      worker->Leave();
    }
    EXPECT_TRUE(Join(worker.get(), ++epoch, way.placement, nullptr).ok()) << way.name;
  }
}

// What was loaded for an epoch that has ended serves the next one.
TEST_F(WorkerStartTest, TheEndOfAnEpochDoesNotEndItsLoading) {
  const std::unique_ptr<Worker> worker = Open();
  const absl::Status aborted = Join(worker.get(), 1, {}, [&](const LoadProgress& progress) {
    if (progress.phase == LoadPhase::kWeights) worker->Abort(1, "a test wants it");
    return true;
  });
  EXPECT_TRUE(absl::IsAborted(aborted)) << aborted;
  worker->Leave();
  int loads = 0;
  const absl::Status joined = Join(worker.get(), 2, {}, [&](const LoadProgress& progress) {
    loads += progress.phase == LoadPhase::kWeights ? 1 : 0;
    return true;
  });
  EXPECT_TRUE(joined.ok()) << joined;
  EXPECT_EQ(loads, 0);
}

// Who waits for a rank that loads cannot see its progress: the server, which can, ends the wait.
TEST_F(WorkerStartTest, ARankWaitsForAnotherAsLongAsThatLoads) {
  if (!TestDevice().is_cpu()) GTEST_SKIP() << "once is enough";
  static constexpr int64_t kDeadlineMs = 1000;
  comm::InMemoryStore store;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int rank = 0; rank < 2; ++rank) workers.push_back(Open());
  std::vector<absl::Status> joined(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      bool slow = rank == 1;
      joined[static_cast<size_t>(rank)] = workers[static_cast<size_t>(rank)]->Join(
          {.epoch = 1, .rank = rank, .world = 2, .store_token = "secret", .form_deadline_ms = kDeadlineMs}, "127.0.0.1",
          SettingsOf({}), &store, [slow](const LoadProgress&) mutable {
            if (std::exchange(slow, false)) absl::SleepFor(absl::Milliseconds(2 * kDeadlineMs));
            return true;
          });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(joined, Each(absl::OkStatus()));
}

}  // namespace
}  // namespace switchyard::worker
