// Metrics of the engine, and those that depend on the model and its group.
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/engine/engine_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;

class EngineMetricsTest : public EngineTest {
 protected:
  double Success(batching::FinishReason reason) { return metrics->request_success(reason).Value(); }
  double Successes() {
    return Success(batching::FinishReason::kStop) + Success(batching::FinishReason::kLength) +
           Success(batching::FinishReason::kAbort);
  }
  double Errors(absl::StatusCode code) { return metrics->request_error(code).Value(); }
  // Runs one sequence of five tokens; the second worker is idle.
  void RunOneOnTwoWorkers() {
    config.workers = 2;
    Start();
    const auto first = Connect(1, "secret", 0), second = Connect(2, "secret", 1);
    AwaitReady(true);
    Reader reader;
    Submit(reader, "r", 5);
    EXPECT_TRUE(reader.End().ok());
    Finalize();
  }
};

TEST_F(EngineMetricsTest, AnEndIsASuccessByItsReason) {
  StartReady();
  Reader reader;
  Submit(reader, "r", 5);
  ASSERT_TRUE(reader.End().ok());
  Finalize();
  EXPECT_EQ(Success(batching::FinishReason::kLength), 1);
  EXPECT_EQ(Successes(), 1);
  const auto longest = metrics->request_max_num_generation_tokens->Collect().histogram;
  EXPECT_EQ(longest.sample_count, 1u);
  EXPECT_EQ(longest.sample_sum, 5);
  const auto mean = metrics->request_time_per_output_token->Collect().histogram;
  EXPECT_EQ(mean.sample_count, 1u);
  EXPECT_DOUBLE_EQ(mean.sample_sum * 4, metrics->request_decode_time->Collect().histogram.sample_sum);
}

TEST_F(EngineMetricsTest, OneTokenHasNoTimeBetweenTokens) {
  StartReady();
  Reader reader;
  Submit(reader, "r", 1);
  ASSERT_TRUE(reader.End().ok());
  Finalize();
  EXPECT_EQ(metrics->request_time_per_output_token->Collect().histogram.sample_count, 0u);
  EXPECT_EQ(metrics->request_decode_time->Collect().histogram.sample_count, 1u);
}

// Which of the queue's two limits refused a request is seen.
TEST_F(EngineMetricsTest, RejectionsAreCountedByTheQueuesLimit) {
  config.batching.max_num_seqs = 1;
  config.batching.max_queue = 2;
  config.batching.max_queued_tokens = 4;  // a request has 3
  StartReady();
  worker->Allow(0);
  Reader running, waiting, second, refused, third;
  Submit(running, "a", 5);
  worker->AwaitHeld();
  Submit(waiting, "b", 5);
  Submit(refused, "c", 5);
  EXPECT_EQ(refused.Reason(), "QUEUE_FULL");
  auto short_one = Request("d", 5);
  short_one->prompt = {1};
  Submit(second, std::move(short_one));
  Submit(third, "e", 5);
  EXPECT_EQ(third.Reason(), "QUEUE_FULL");
  worker->Allow(-1);
  for (Reader* reader : {&running, &waiting, &second}) EXPECT_TRUE(reader->End().ok());
  // The end of the group counts what no tick has counted yet.
  engine->links()->OnLinkLost(1, "its link ended");
  AwaitReady(false);
  Finalize();
  EXPECT_EQ(metrics->rejected_for_requests->Value(), 1);
  EXPECT_EQ(metrics->rejected_for_tokens->Value(), 1);
}

TEST_F(EngineMetricsTest, AnEndByALogitThatIsNoNumberIsCounted) {
  StartReady();
  worker->Allow(0);
  Reader reader;
  Submit(reader, "r", 5);
  worker->AwaitHeld();
  batching::RankResult result;
  result.items.resize(1);
  result.items[0].status = batching::ItemStatus::kNonFinite;
  engine->links()->OnStepResult(1, 1, 1, result);
  EXPECT_EQ(reader.End().code(), absl::StatusCode::kDataLoss);
  Finalize();
  EXPECT_EQ(metrics->corrupted_requests->Value(), 1);
  EXPECT_EQ(Errors(absl::StatusCode::kDataLoss), 1);
}

TEST_F(EngineMetricsTest, OnlyTheLongestOfSeveralChoicesIsTheRequestsLength) {
  StartReady();
  Reader reader;
  auto request = Request("r", 7);
  request->num_choices = 3;
  Submit(reader, std::move(request));
  ASSERT_TRUE(reader.End().ok());
  Finalize();
  EXPECT_EQ(Success(batching::FinishReason::kLength), 3);
  const auto longest = metrics->request_max_num_generation_tokens->Collect().histogram;
  EXPECT_EQ(longest.sample_count, 1u);
  EXPECT_EQ(longest.sample_sum, 7);
  EXPECT_EQ(metrics->request_generation_tokens->Collect().histogram.sample_sum, 21);
}

TEST_F(EngineMetricsTest, ADeadlineIsNoSuccessAndHasNoPhasesThatItDidNotReach) {
  StartReady();
  worker->Allow(0);
  Reader reader;
  auto request = Request("r", 5);
  request->deadline = MonotonicNow() + absl::Milliseconds(50);
  Submit(reader, std::move(request));
  EXPECT_EQ(reader.End().code(), absl::StatusCode::kDeadlineExceeded);
  Finalize();
  EXPECT_EQ(Errors(absl::StatusCode::kDeadlineExceeded), 1);
  EXPECT_EQ(Successes(), 0);
  EXPECT_EQ(metrics->request_queue_time->Collect().histogram.sample_count, 1u);
  EXPECT_EQ(metrics->request_prefill_time->Collect().histogram.sample_count, 0u);
  EXPECT_EQ(metrics->request_inference_time->Collect().histogram.sample_count, 0u);
  worker->Allow(-1);
}

TEST_F(EngineMetricsTest, ALostGroupIsNoSuccess) {
  config.batching.max_losses = 0;
  StartReady();
  worker->Allow(0);
  Reader reader;
  Submit(reader, "r", 5);
  worker->AwaitHeld();
  engine->links()->OnLinkLost(1, "its link ended");
  EXPECT_EQ(reader.End().code(), absl::StatusCode::kUnavailable);
  Finalize();
  EXPECT_EQ(Errors(absl::StatusCode::kUnavailable), 1);
  EXPECT_EQ(Successes(), 0);
}

TEST_F(EngineMetricsTest, AClientThatGoesAwayAbortsAndOneThatIsSentAwayDoesNot) {
  StartReady();
  worker->Allow(0);
  Reader gone, sent_away, aborted;
  const uint64_t first = Submit(gone, "a", 5);
  const uint64_t second = Submit(sent_away, "b", 5);
  Submit(aborted, "c", 5);
  engine->Cancel(first, absl::CancelledError("the client is gone"));
  engine->Cancel(second, absl::ResourceExhaustedError("too slow"));
  Finalize();
  EXPECT_EQ(Success(batching::FinishReason::kAbort), 1);
  EXPECT_EQ(Errors(absl::StatusCode::kResourceExhausted), 1);
  engine->Abort("c", [](bool found) { EXPECT_TRUE(found); });
  EXPECT_TRUE(aborted.End().ok());
  Finalize();
  EXPECT_EQ(Success(batching::FinishReason::kAbort), 2);
  EXPECT_EQ(Successes(), 2);
  worker->Allow(-1);
}

// One sequence on two workers: the idle worker does not determine a step's phase.
TEST_F(EngineMetricsTest, AStepIsOfPromptsIfARowIs) {
  model_facts.num_moe_layers = 1;
  model_facts.num_experts = 4;
  model_facts.experts_per_token = 1;
  on_connect = [](ScriptedWorker* one) {
    one->script.expert_counts = {0, 0, 0, 0};
    one->script.counts_items = true;
  };
  RunOneOnTwoWorkers();
  const auto steps = [this](popularity::Phase phase) {
    return metrics->moe_balancedness(phase).Collect().histogram.sample_count;
  };
  EXPECT_EQ(steps(popularity::Phase::kPrefill), 1u);
  EXPECT_EQ(steps(popularity::Phase::kDecode), 4u);
  // All rows are on one of two workers.
  EXPECT_DOUBLE_EQ(metrics->moe_balancedness(popularity::Phase::kDecode).Collect().histogram.sample_sum, 4 * 0.5);
}

// Ranks wait for each other in every layer, so different busy ranks in different layers do not even out.
TEST_F(EngineMetricsTest, LayersAreUnevenEachForItself) {
  model_facts.num_moe_layers = 2;
  model_facts.num_experts = 2;
  model_facts.experts_per_token = 1;
  int workers = 0;
  on_connect = [&workers](ScriptedWorker* one) {
    one->script.expert_counts = {0, 0, 0, 0};
    one->script.layer_rows = workers++ == 0 ? std::vector<int64_t>{4, 0} : std::vector<int64_t>{0, 4};
  };
  RunOneOnTwoWorkers();
  double steps = 0, sum = 0;
  for (const popularity::Phase phase : {popularity::Phase::kPrefill, popularity::Phase::kDecode}) {
    const auto histogram = metrics->moe_balancedness(phase).Collect().histogram;
    steps += static_cast<double>(histogram.sample_count);
    sum += histogram.sample_sum;
  }
  EXPECT_EQ(steps, 5);
  EXPECT_DOUBLE_EQ(sum, 5 * 0.5);
}

// Returns the bounds of a histogram's buckets, without the infinite one.
std::vector<double> Bounds(const prometheus::Histogram& histogram) {
  std::vector<double> out;
  for (const auto& bucket : histogram.Collect().histogram.bucket) {
    if (!std::isinf(bucket.upper_bound)) out.push_back(bucket.upper_bound);
  }
  return out;
}

TEST(ServerMetricsTest, BucketsOfTokensEndAtTheContext) {
  const auto bounds = [](int32_t context) {
    ServerMetrics metrics("tiny");
    metrics.SetMaxModelLen(context);
    metrics.SetMaxModelLen(7);  // a later group serves the same model
    EXPECT_EQ(Bounds(*metrics.request_prompt_tokens), Bounds(*metrics.request_params_max_tokens));
    return Bounds(*metrics.request_prompt_tokens);
  };
  EXPECT_THAT(bounds(1), ElementsAre(1));
  EXPECT_THAT(bounds(640), ElementsAre(1, 2, 5, 10, 20, 50, 100, 200, 500));
  EXPECT_THAT(bounds(5000), ElementsAre(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000));
  EXPECT_EQ(bounds(131072).back(), 100000);
  EXPECT_EQ(bounds(1000000).back(), 1000000);
}

TEST(ServerMetricsTest, OneGroupsCacheIsDescribed) {
  ServerMetrics metrics("tiny");
  metrics.SetCacheConfig(/*block_size=*/16, /*num_blocks=*/10, "fp32", /*prefix_reuse=*/true);
  metrics.SetCacheConfig(/*block_size=*/16, /*num_blocks=*/12, "fp32", /*prefix_reuse=*/true);
  for (const auto& family : metrics.registry()->Collect()) {
    if (family.name != "switchyard_cache_config_info") continue;
    ASSERT_EQ(family.metric.size(), 1u);
    EXPECT_EQ(family.metric[0].gauge.value, 1);
    for (const auto& label : family.metric[0].label) {
      EXPECT_TRUE(label.name != "num_gpu_blocks" || label.value == "12") << label.value;
    }
    return;
  }
  ADD_FAILURE() << "no such metric";
}

}  // namespace
}  // namespace switchyard::server
