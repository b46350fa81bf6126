// How long the engine's thread is held up by the background balancer of placement
// (server/balancer/background_balancer.h), how long a worker's thread is by its migrations
// (workers/moe/placement/per_step_balancer.h), and how long the plan takes on its own thread.
//
//   background_balancer_bench LAYERS EXPERTS RANKS
//
// Zipf loads, another order of experts in each layer; a plan is made by MakePlan and carried out, with every
// message to the workers made, and none sent; then by one worker, whose copies take no time.  Times of the longest call
// of each kind.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "proto/link/placement_codec.h"
#include "scheduler/base/check.h"
#include "scheduler/placement/per_step/resident_change.h"
#include "server/balancer/background_balancer.h"
#include "workers/moe/placement/per_step_balancer.h"

namespace switchyard {
namespace {

constexpr int kTopK = 8, kSpareSlots = 1, kReplicaSlots = 2;
constexpr int64_t kTokens = 2048, kExpertBytes = 9 << 20;
constexpr double kZipf = 0.8, kRowSeconds = 1e-5, kStepSeconds = 0.5;

using Clock = std::chrono::steady_clock;

// Keeps the longest of its calls' times, in microseconds.
class Longest {
 public:
  template <class Call>
  void Time(Call call) {
    const Clock::time_point begin = Clock::now();
    call();
    most_ = std::max(most_, std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  double most() const { return most_; }

 private:
  double most_ = 0;
};

class Workers final : public server::BackgroundBalancer::Host {
 public:
  explicit Workers(int ranks) : ranks_(ranks) {}

  void Plan(server::PlanOrder order) override { order_ = std::move(order); }
  void Prepare(const placement::Migration& migration) override {
    migrations_.push_back(migration);
    for (int rank = 0; rank < ranks_; ++rank) bytes_ += link::ToProto(migration, 1).SerializeAsString().size();
  }
  void Drop(int64_t) override {}
  void Release(int64_t) override {}
  void BreakGroup(const std::string&) override {}

  const server::PlanOrder& order() const { return *order_; }
  const std::vector<placement::Migration>& migrations() const { return migrations_; }
  int64_t epoch() const { return migrations_.back().epoch; }
  size_t bytes() const { return bytes_; }

 private:
  const int ranks_;
  std::optional<server::PlanOrder> order_;
  std::vector<placement::Migration> migrations_;
  size_t bytes_ = 0;
};

// A worker whose experts are there as soon as they are asked for.
class ReadySlots final : public moe::ExpertHost {
 public:
  absl::Status Fill(const std::vector<std::vector<int32_t>>&, absl::Time, Progress) override {
    return absl::OkStatus();
  }
  absl::Status Replace(int, int32_t, int32_t, moe::CopyReason) override { return absl::OkStatus(); }
  void RaisePriority(int, int32_t) override {}
  absl::Status Prepare(absl::Span<const Expert>) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Ready() override { return true; }
  void Commit(absl::Span<const Expert>) override {}
  absl::Status Drop() override { return absl::OkStatus(); }
  absl::Status Release() override { return absl::OkStatus(); }
};

// The longest that a worker is held up by a migration's arrival, and a step by its commit.
struct WorkerTimes {
  double prepare = 0, commit = 0;
};

WorkerTimes CarryOut(const std::vector<placement::Migration>& migrations, int layers, int experts, int ranks) {
  ReadySlots slots;
  const placement::Placement residents =
      placement::WithTransientSlots(placement::ContiguousPlacement(experts, ranks, kSpareSlots), kSpareSlots);
  auto balancer = moe::PerStepBalancer::Create(
      {.shape = {.top_k = kTopK,
                 .residents = std::vector<placement::Placement>(static_cast<size_t>(layers), residents)},
       .experts = &slots});
  SY_CHECK(balancer.ok());
  Longest prepares, commits;
  int64_t step = 0;
  for (const placement::Migration& migration : migrations) {
    absl::Status status;
    prepares.Time([&] {
      status = (*balancer)->Prepare(migration.epoch, migration.costs,
                                    {.arrivals = migration.arrivals, .departures = migration.departures});
    });
    SY_CHECK(status.ok());
    commits.Time([&] { status = (*balancer)->BeginStep({++step, migration.epoch}); });
    SY_CHECK(status.ok());
    SY_CHECK((*balancer)->Release(migration.epoch).ok());
  }
  return {.prepare = prepares.most(), .commit = commits.most()};
}

// [L * E] rows of one step.
std::vector<int64_t> Counts(int layers, int experts) {
  std::mt19937 gen(1);
  std::vector<double> shares(static_cast<size_t>(experts));
  for (int e = 0; e < experts; ++e) shares[e] = std::pow(e + 1, -kZipf);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<int64_t> counts;
  for (int layer = 0; layer < layers; ++layer) {
    std::vector<int64_t> rows;
    for (const double share : shares) {
      rows.push_back(static_cast<int64_t>(static_cast<double>(kTokens * kTopK) * share / sum));
    }
    rows[0] += kTokens * kTopK - std::accumulate(rows.begin(), rows.end(), int64_t{0});
    std::shuffle(rows.begin(), rows.end(), gen);
    counts.insert(counts.end(), rows.begin(), rows.end());
  }
  return counts;
}

void Run(int layers, int experts, int ranks) {
  const absl::Time now = absl::UnixEpoch();
  Workers workers(ranks);
  server::BackgroundBalancer loop({.mode = placement::PlacementMode::kAgreed,
                                   .spare_slots = kSpareSlots,
                                   .replica_slots = kReplicaSlots,
                                   .rebalance_steps = 1},
                                  &workers);
  loop.Begin({.layers = layers, .experts = experts, .devices = ranks}, {});
  loop.GroupUp();
  popularity::ExpertLoadStats load_stats({.num_layers = layers, .num_experts = experts, .top_k = kTopK}, 1 << 18);
  server::PlacementCostMonitor meter(kExpertBytes, 0);
  const std::vector<int64_t> counts = Counts(layers, experts);
  int64_t step = 0;
  Longest steps, planned, planning, answers;
  const auto run_step = [&] {
    batching::StepResult result;
    result.step = ++step;
    result.ranks.resize(static_cast<size_t>(ranks));
    for (batching::RankResult& rank : result.ranks) {
      rank.expert_rows = kTokens * kTopK * layers / ranks;
      rank.timings.expert_seconds = kRowSeconds * static_cast<double>(rank.expert_rows);
      rank.timings.total_seconds = kStepSeconds;
    }
    SY_CHECK(load_stats.Add(popularity::Phase::kPrefill, counts).ok());
    steps.Time([&] {
      loop.StepPlanned(step, now);
      meter.Add(result, load_stats);
      loop.StepDone(step, load_stats, &meter, now);
    });
  };
  run_step();
  absl::StatusOr<server::PendingMigration> plan;
  planning.Time([&] { plan = server::MakePlan(workers.order()); });
  SY_CHECK(plan.ok());
  const int64_t copies = plan->plan.copies;
  const size_t migrations = plan->plan.migrations.size();
  planned.Time([&] { loop.Planned(*std::move(plan), now); });
  for (size_t migration = 0; migration < migrations; ++migration) {
    for (int rank = 0; rank < ranks; ++rank) {
      answers.Time([&] { loop.Prepared(rank, workers.epoch(), "", now); });
    }
    run_step();
    const int64_t epoch = workers.epoch();
    for (int rank = 0; rank < ranks; ++rank) answers.Time([&] { loop.Released(rank, epoch, now); });
  }
  SY_CHECK_EQ(loop.view().copies, copies);
  std::printf("%d layers, %d experts, %d ranks: %lld copies in %zu migrations, %zu bytes of messages\n", layers,
              experts, ranks, static_cast<long long>(copies), migrations, workers.bytes());
  std::printf("planning %.0f ms; the engine: a plan arrives %.0f us, a step's end %.0f us, an answer %.0f us\n",
              planning.most() / 1e3, planned.most(), steps.most(), answers.most());
  const WorkerTimes worker = CarryOut(workers.migrations(), layers, experts, ranks);
  std::printf("a worker: a migration arrives %.0f us, a step that commits one %.0f us\n", worker.prepare,
              worker.commit);
  std::printf("{\"planning_ms\": %.1f, \"engine_us\": %.1f, \"worker_us\": %.1f}\n", planning.most() / 1e3,
              std::max({planned.most(), steps.most(), answers.most()}), std::max(worker.prepare, worker.commit));
}

int Main(int argc, char** argv) {
  int shape[3] = {};
  for (int i = 0; i < 3; ++i) {
    if (argc == 4 && absl::SimpleAtoi(argv[i + 1], &shape[i]) && shape[i] >= 1) continue;
    std::fprintf(stderr, "usage: background_balancer_bench LAYERS EXPERTS RANKS\n");
    return 2;
  }
  if (shape[1] < kTopK || shape[2] < 2) {
    std::fprintf(stderr, "background_balancer_bench: wants at least %d experts and 2 ranks\n", kTopK);
    return 2;
  }
  Run(shape[0], shape[1], shape[2]);
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
