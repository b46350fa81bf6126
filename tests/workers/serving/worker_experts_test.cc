// A worker, without its network, whose experts are brought to slots: from the machine's expert file, under a budget and
// under a placement, the tokens of one that has all of them.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/profile_bundle.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/temp_dir.h"
#include "tests/workers/serving/damaged_file.h"
#include "workers/serving/worker.h"

namespace switchyard::worker {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr int kTokens = 6;

class WorkerExpertsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasDevices(1)) GTEST_SKIP() << "skipped: no GPU";
  }
  // With the tiny model, in a group of its own.
  void Join(const offload::ExpertBudgetOptions& experts, const placement::PlacementSettings& placement,
            const ForecastOptions& forecast = {}, Device device = TestDevice()) {
    worker_.reset();
    WorkerOptions options;
    options.model_dir = "tests/golden/models/qwen3-qknorm";
    options.device = device;
    options.deterministic = !experts.cold_on_host();
    options.forecast = forecast;
    options.experts = experts;
    options.experts.file_dir = dir_.path();
    auto worker = Worker::Open(std::move(options));
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    settings_ = {.kv_cache_bytes = 1 << 20,
                 .max_num_seqs = 4,
                 .max_batched_tokens = 32,
                 .max_model_len = 128,
                 .placement = placement};
    comm::InMemoryStore store;
    const fleet::RankAssignment assignment = {.epoch = 1, .store_token = "secret", .form_deadline_ms = 30'000};
    const absl::Status joined = worker_->Join(assignment, "127.0.0.1", settings_, &store, nullptr);
    ASSERT_TRUE(joined.ok()) << joined;
  }
  static batching::StepItem Prompt() {
    batching::StepItem item;
    item.num_query = 20;
    item.sample = true;
    item.new_blocks = {3, 1};
    item.init = batching::SlotInit{.tokens = {}, .num_prompt_tokens = item.num_query, .sampling = {}};
    for (int32_t i = 0; i < item.num_query; ++i) item.init->tokens.push_back(5 + 7 * i);
    item.init->sampling.temperature = 0;
    return item;
  }
  absl::StatusOr<batching::RankResult> Execute(const batching::StepPlan& head, const batching::RankPlan& part) {
    if (absl::Status status = worker_->Start(head, part, kLimit); !status.ok()) return status;
    return worker_->Finish();
  }
  // The prompt's alone.
  absl::Status Step(int64_t step) {
    batching::StepPlan head;
    head.step = step;
    batching::RankPlan part;
    if (step > 1) part.freed_slots = {0};
    part.items = {Prompt()};
    return Execute(head, part).status();
  }
  // The answer to a prompt of 20 tokens.
  std::vector<int32_t> Tokens() {
    batching::StepItem item = Prompt();
    std::vector<int32_t> tokens;
    for (int64_t step = 1; step <= kTokens; ++step) {
      batching::StepPlan head;
      head.step = step;
      batching::RankPlan part;
      part.items = {item};
      const auto result = Execute(head, part);
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) break;
      tokens.push_back(result->items[0].tokens[0]);
      counts_.resize(result->expert_counts.size());
      for (size_t key = 0; key < counts_.size(); ++key) counts_[key] += result->expert_counts[key];
      item = batching::StepItem();
      item.start_pos = 19 + static_cast<int32_t>(step);
      item.num_query = 1;
      item.sample = true;
    }
    return tokens;
  }

  // A profile of these weights that has counted nothing but so many rows of each expert.
  std::string ProfileOf(const std::vector<int64_t>& counts) {
    const model::ModelConfig& config = worker_->config();
    const popularity::RoutingShape shape = {.num_layers = static_cast<int>(config.num_moe_layers()),
                                            .num_experts = static_cast<int>(config.num_experts),
                                            .top_k = static_cast<int>(config.top_k)};
    popularity::PathProfile profile({.model = worker_->weights_hash(), .shape = shape}, {});
    for (size_t key = 0; key < counts.size(); ++key) {
      std::vector<int16_t> chosen(static_cast<size_t>(shape.num_layers * shape.top_k), -1);
      const auto layer = key / static_cast<size_t>(shape.num_experts);
      chosen[layer * static_cast<size_t>(shape.top_k)] =
          static_cast<int16_t>(key % static_cast<size_t>(shape.num_experts));
      const popularity::RoutingView view = {.shape = shape,
                                            .num_tokens = 1,
                                            .experts = chosen.data(),
                                            .token_stride = static_cast<int64_t>(chosen.size()),
                                            .layer_stride = shape.top_k};
      for (int64_t row = 0; row < counts[key]; ++row) profile.Observe(view, static_cast<int>(layer));
    }
    popularity::ProfileBundle bundle{
        .model = worker_->weights_hash(), .shape = shape, .hidden = 0, .profiles = {}, .maps = {}};
    bundle.profiles.push_back(std::move(profile));
    dir_.Write("profile", bundle.Serialize());
    return dir_.File("profile");
  }

  const model::TempDir dir_;
  fleet::EngineSettings settings_;
  std::unique_ptr<Worker> worker_;
  std::vector<int64_t> counts_;  // [L * E] of Tokens, so far
};

// static keeps what is popular at the start: by the profile of what comes, it finds more there, and by one that says
// the contrary less.
TEST_F(WorkerExpertsTest, AProfileSaysWhatABudgetBeginsWith) {
  if (!TestDevice().is_cpu()) GTEST_SKIP() << "nothing of it is the device's";
  const offload::ExpertBudgetOptions budget = {.budget = "50%"};
  ASSERT_NO_FATAL_FAILURE(Join(budget, {}));
  const std::vector<int32_t> expected = Tokens();
  std::vector<int64_t> contrary;
  for (const int64_t rows : counts_) contrary.push_back(*std::max_element(counts_.begin(), counts_.end()) - rows);
  ASSERT_NO_FATAL_FAILURE(Join(budget, {}, {.profile = ProfileOf(counts_)}));
  EXPECT_EQ(Tokens(), expected);
  const int64_t profiled = worker_->expert_counters().hits;
  ASSERT_NO_FATAL_FAILURE(Join(budget, {}, {.profile = ProfileOf(contrary)}));
  EXPECT_EQ(Tokens(), expected);
  EXPECT_GT(profiled, worker_->expert_counters().hits);
}

TEST_F(WorkerExpertsTest, TheTokensOfResidentExperts) {
  ASSERT_NO_FATAL_FAILURE(Join({}, {}));
  const int64_t captured = worker_->graph_counters().captured;
  EXPECT_EQ(captured > 0, !TestDevice().is_cpu()) << "before it is ready";
  const std::vector<int32_t> expected = Tokens();
  ASSERT_EQ(static_cast<int>(expected.size()), kTokens);
  EXPECT_EQ(worker_->num_replayed() > 0, !TestDevice().is_cpu());
  EXPECT_EQ(worker_->graph_counters().captured, captured);
  const int64_t resident_bytes = worker_->weight_bytes();

  ASSERT_NO_FATAL_FAILURE(Join({.budget = "40%"}, {}));
  EXPECT_LT(worker_->weight_bytes(), resident_bytes);
  EXPECT_EQ(Tokens(), expected);
  EXPECT_GT(worker_->expert_counters().misses + worker_->expert_counters().late, 0);
  EXPECT_GT(worker_->expert_counters().hits, 0);
  EXPECT_GT(worker_->expert_counters().plan_seconds, 0);
  EXPECT_EQ(worker_->num_replayed(), 0);

  ASSERT_NO_FATAL_FAILURE(Join({}, {.mode = placement::PlacementMode::kNoEstimate, .spare_slots = 1}));
  EXPECT_EQ(Tokens(), expected);
  EXPECT_EQ(worker_->placement_counters().copies[static_cast<size_t>(moe::CopyReason::kFill)], 14);
  EXPECT_EQ(worker_->num_replayed(), 0);
}

// Also where the next cache captures and replays as much as the one before.
TEST_F(WorkerExpertsTest, CountsOfGraphsGoOnWithTheNextCache) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "it captures nothing";
  ASSERT_NO_FATAL_FAILURE(Join({}, {}));
  Tokens();
  const model::GraphCounters first = worker_->graph_counters();
  ASSERT_GT(first.replayed, 0);
  worker_->Leave();
  settings_.max_batched_tokens /= 2;
  comm::InMemoryStore store;
  const absl::Status joined = worker_->Join({.epoch = 2, .store_token = "other", .form_deadline_ms = 30'000},
                                            "127.0.0.1", settings_, &store, nullptr);
  ASSERT_TRUE(joined.ok()) << joined;
  EXPECT_EQ(worker_->graph_counters().captured, 2 * first.captured);
  EXPECT_GT(worker_->graph_counters().capture_seconds, first.capture_seconds);
  EXPECT_EQ(worker_->graph_counters().replayed, first.replayed);
}

TEST_F(WorkerExpertsTest, ABudgetBesideAPlacementIsRefused) {
  WorkerOptions options;
  options.model_dir = "tests/golden/models/qwen3-qknorm";
  options.device = TestDevice();
  options.experts = {.budget = "40%", .file_dir = dir_.path()};
  auto worker = Worker::Open(std::move(options));
  ASSERT_TRUE(worker.ok()) << worker.status();
  comm::InMemoryStore store;
  const absl::Status joined =
      (*worker)->Join({.epoch = 1, .store_token = "secret", .form_deadline_ms = 30'000}, "127.0.0.1",
                      {.placement = {.mode = placement::PlacementMode::kAgreed, .spare_slots = 1}}, &store, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(joined)) << joined;
  EXPECT_EQ(
      joined.message(),
      "--expert_memory=40%: excludes --placement=agreed --spare_slots=1: a replica would take the room of another "
      "expert");
}

// The expert file lives as long as the machine: what becomes of its bytes while it is open is noticed when they are
// copied, not computed with, and the file is made anew.
TEST_F(WorkerExpertsTest, ADamagedExpertFileIsNoticedAndMadeAnew) {
  ASSERT_NO_FATAL_FAILURE(Join({.budget = "40%"}, {}));
  const std::vector<int32_t> expected = Tokens();
  ASSERT_EQ(static_cast<int>(expected.size()), kTokens);
  ASSERT_NO_FATAL_FAILURE(Join({.budget = "40%"}, {}));
  test::DamageExpertFiles(dir_.path());
  absl::Status noticed;
  for (int64_t step = 1; noticed.ok() && step <= kTokens; ++step) noticed = Step(step);
  EXPECT_TRUE(absl::IsDataLoss(noticed)) << noticed;
  EXPECT_THAT(std::string(noticed.message()), HasSubstr("have changed since the file was made"));
  EXPECT_THAT(std::string(noticed.message()), Not(HasSubstr(dir_.path()))) << "clients get it";
  EXPECT_GT(worker_->expert_counters().failed, 0);
  // As the next epoch's.
  worker_->Leave();
  comm::InMemoryStore store;
  const absl::Status joined = worker_->Join({.epoch = 2, .store_token = "other", .form_deadline_ms = 30'000},
                                            "127.0.0.1", settings_, &store, nullptr);
  ASSERT_TRUE(joined.ok()) << joined;
  EXPECT_EQ(Tokens(), expected);
  EXPECT_EQ(worker_->expert_counters().failed, 0);
}

// Coming layers' rows are predicted where rows are, by the same estimators as on the CPU.
TEST_F(WorkerExpertsTest, ForecastsAreThoseOfAWorkerOnTheCpu) {
  // Of a layer's experts that get rows, how many may be others: the devices round otherwise.
  constexpr double kTolerance = 0.05;
  std::vector<double> expected;
  for (const Device device : {Device::Cpu(), TestDevice()}) {
    ASSERT_NO_FATAL_FAILURE(
        Join({}, {.mode = placement::PlacementMode::kAgreed, .spare_slots = 1}, {.when = "always"}, device));
    ASSERT_NE(worker_->load_predictor(), nullptr);
    EXPECT_EQ(Tokens().size(), static_cast<size_t>(kTokens));
    const popularity::LiveEstimates& prompts = worker_->load_predictor()->phase(popularity::Phase::kPrefill);
    std::vector<double> distances;
    for (const popularity::LivePredictor estimator :
         {popularity::LivePredictor::kMarginal, popularity::LivePredictor::kGateAhead}) {
      const popularity::EstimateScore& score = prompts.score(estimator, 1, 1);
      distances.push_back(score.num_batches() == 0 ? -1 : score.distance());
    }
    EXPECT_GT(distances[1], 0);
    EXPECT_GT(worker_->load_predictor()
                  ->phase(popularity::Phase::kDecode)
                  .score(popularity::LivePredictor::kGateAhead, 1, 1)
                  .num_batches(),
              0);
    EXPECT_GT(worker_->load_predictor()->spent(), absl::ZeroDuration());
    if (expected.empty()) expected = distances;
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(distances[i], expected[i], kTolerance) << i;
  }
}

// Other decisions use no estimates.
TEST_F(WorkerExpertsTest, OnlyThePapersModesForecastByThemselves) {
  ASSERT_NO_FATAL_FAILURE(Join({}, {.mode = placement::PlacementMode::kAgreed, .spare_slots = 1}));
  EXPECT_EQ(worker_->load_predictor(), nullptr);
  ASSERT_NO_FATAL_FAILURE(Join({}, {.mode = placement::PlacementMode::kLina, .spare_slots = 1}));
  EXPECT_NE(worker_->load_predictor(), nullptr);
}

// Steps with observed gates are not recorded; tokens stay the same.
TEST_F(WorkerExpertsTest, ForecastsWithoutAPlacement) {
  ASSERT_NO_FATAL_FAILURE(Join({}, {}));
  EXPECT_EQ(worker_->load_predictor(), nullptr);
  const std::vector<int32_t> expected = Tokens();
  const std::string plain = worker_->isa();
  const std::string profile = dir_.path() + "/profile";
  ASSERT_NO_FATAL_FAILURE(Join({.budget = "40%"}, {}, {.when = "always"}));
  ASSERT_NE(worker_->load_predictor(), nullptr);
  EXPECT_EQ(Tokens(), expected);
  ASSERT_NO_FATAL_FAILURE(Join({}, {}, {.profile_out = profile}));
  EXPECT_EQ(Tokens(), expected);
  EXPECT_EQ(worker_->num_replayed(), 0);
  EXPECT_EQ(worker_->isa() == plain, TestDevice().is_cpu());  // who records does not sit with who does not
  EXPECT_EQ(worker_->load_predictor()->fit()->num_rows(), 20 + kTokens - 1);
  worker_->Leave();
  const absl::Status saved = worker_->SaveProfile();
  EXPECT_TRUE(saved.ok()) << saved;
  EXPECT_TRUE(ReadProfile({.profile = profile}, worker_->weights_hash()).ok());
}

// Over a slow link nearly all of what is in no slot is computed on the host, from a file in its own form.
TEST_F(WorkerExpertsTest, ColdExpertsMayRunOnTheHost) {
  const offload::ExpertBudgetOptions cold = {.budget = "40%", .copy_bytes_per_second = 1e6, .cold = "host"};
  if (TestDevice().is_cpu()) {
    WorkerOptions options;
    options.model_dir = "tests/golden/models/qwen3-qknorm";
    options.experts = cold;
    EXPECT_EQ(Worker::Open(std::move(options)).status().message(),
              "--cold_experts=host: is for GPUs, but --device=cpu");
    return;
  }
  ASSERT_NO_FATAL_FAILURE(Join({.budget = "40%"}, {}));
  EXPECT_EQ(static_cast<int>(Tokens().size()), kTokens);
  EXPECT_EQ(worker_->cold_counters().rows, 0);
  const int64_t misses = worker_->expert_counters().misses;
  ASSERT_NO_FATAL_FAILURE(Join(cold, {}));
  EXPECT_EQ(static_cast<int>(Tokens().size()), kTokens);
  EXPECT_GT(worker_->cold_counters().rows, 20);
  EXPECT_GT(worker_->cold_counters().seconds, 0);
  EXPECT_LT(worker_->expert_counters().misses, misses);
}

TEST_F(WorkerExpertsTest, TooFewSlotsAreRefused) {
  WorkerOptions options;
  options.model_dir = "tests/golden/models/qwen3-qknorm";
  options.device = TestDevice();
  options.experts = {.budget = "10%", .file_dir = dir_.path()};
  auto worker = Worker::Open(std::move(options));
  ASSERT_TRUE(worker.ok()) << worker.status();
  comm::InMemoryStore store;
  const fleet::RankAssignment assignment = {.epoch = 1, .store_token = "secret", .form_deadline_ms = 30'000};
  const absl::Status joined =
      (*worker)->Join(assignment, "127.0.0.1", {.max_batched_tokens = 32, .max_model_len = 128}, &store, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(joined)) << joined;
  EXPECT_THAT(std::string(joined.message()), HasSubstr("--expert_memory=10%: holds 2 of this worker's 14 experts"));
}

}  // namespace
}  // namespace switchyard::worker
