// The metrics' pages of server and workers, as Prometheus sees them: every family with its type, labels and buckets,
// against the tables below.  A metric that is new, gone or changed has to change its line here.
#include "server/metrics/metrics.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/shared_server.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

// vLLM's buckets (conventions: those of TTFT, of inter-token latency, of the other phases, of steps' rows).
constexpr char kTtft[] = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560";
constexpr char kInterToken[] = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80";
constexpr char kLatency[] = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680";
constexpr char kRows[] = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384";
constexpr char kTokens[] = "1 2 5 10 20 50 100 200 500 1000";  // up to the demo model's context, 1024
// Ours.
constexpr char kStep[] = "0.0005 0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10";
constexpr char kWorkerStep[] = "0.0002 0.0005 0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10";
constexpr char kRatio[] = "0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 0.95 1";

const char kOurs[] = "engine,model_name";

const Families& ServerFamilies() {
  static const Families families = {
      // vLLM's set
      {"switchyard_num_requests_running", {"gauge", kOurs, ""}},
      {"switchyard_num_requests_waiting", {"gauge", kOurs, ""}},
      {"switchyard_kv_cache_usage_perc", {"gauge", kOurs, ""}},
      {"switchyard_cache_config_info",
       {"gauge", "block_size,cache_dtype,enable_prefix_caching,engine,model_name,num_gpu_blocks", ""}},
      {"switchyard_prefix_cache_queries_total", {"counter", kOurs, ""}},
      {"switchyard_prefix_cache_hits_total", {"counter", kOurs, ""}},
      {"switchyard_num_preemptions_total", {"counter", kOurs, ""}},
      {"switchyard_num_outlived_losses_total", {"counter", kOurs, ""}},
      {"switchyard_prompt_tokens_total", {"counter", kOurs, ""}},
      {"switchyard_generation_tokens_total", {"counter", kOurs, ""}},
      {"switchyard_admission_rejections_total", {"counter", "engine,model_name,reason", ""}},
      {"switchyard_corrupted_requests_total", {"counter", kOurs, ""}},
      {"switchyard_request_success_total", {"counter", "engine,finished_reason,model_name", ""}},
      {"switchyard_time_to_first_token_seconds", {"histogram", kOurs, kTtft}},
      {"switchyard_inter_token_latency_seconds", {"histogram", kOurs, kInterToken}},
      {"switchyard_e2e_request_latency_seconds", {"histogram", kOurs, kLatency}},
      {"switchyard_request_queue_time_seconds", {"histogram", kOurs, kLatency}},
      {"switchyard_request_inference_time_seconds", {"histogram", kOurs, kLatency}},
      {"switchyard_request_time_per_output_token_seconds", {"histogram", kOurs, kInterToken}},
      {"switchyard_request_prefill_time_seconds", {"histogram", kOurs, kLatency}},
      {"switchyard_request_decode_time_seconds", {"histogram", kOurs, kLatency}},
      {"switchyard_request_prompt_tokens", {"histogram", kOurs, kTokens}},
      {"switchyard_request_generation_tokens", {"histogram", kOurs, kTokens}},
      {"switchyard_request_max_num_generation_tokens", {"histogram", kOurs, kTokens}},
      {"switchyard_request_params_n", {"histogram", kOurs, "1 2 5 10 20"}},
      {"switchyard_request_params_max_tokens", {"histogram", kOurs, kTokens}},
      {"switchyard_iteration_tokens", {"histogram", kOurs, kRows}},
      // mixture of experts
      {"switchyard_moe_balancedness_ratio", {"histogram", "engine,model_name,phase", kRatio}},
      {"switchyard_placement_gained_seconds", {"gauge", kOurs, ""}},
      {"switchyard_micro_batches_gained_seconds", {"gauge", kOurs, ""}},
      {"switchyard_cut_steps_total", {"counter", kOurs, ""}},
      {"switchyard_deciding_steps_total", {"counter", kOurs, ""}},
      {"switchyard_link_start_seconds", {"gauge", kOurs, ""}},
      {"switchyard_link_bytes_per_second", {"gauge", kOurs, ""}},
      {"switchyard_rows_lent_total", {"counter", kOurs, ""}},
      {"switchyard_moe_tokens_exchanged_total", {"counter", kOurs, ""}},
      {"switchyard_train_slices_total", {"counter", kOurs, ""}},
      {"switchyard_train_slice_seconds_total", {"counter", kOurs, ""}},
      {"switchyard_constraint_mask_seconds", {"histogram", kOurs, kStep}},
      {"switchyard_constraint_wait_seconds", {"histogram", kOurs, kStep}},
      {"switchyard_moe_expert_seconds", {"histogram", kOurs, kStep}},
      {"switchyard_moe_exchange_seconds", {"histogram", kOurs, kStep}},
      {"switchyard_moe_gather_seconds", {"histogram", kOurs, kStep}},
      {"switchyard_moe_decide_seconds", {"histogram", kOurs, kStep}},
      {"switchyard_moe_fine_tuned_layers_total", {"counter", kOurs, ""}},
      // ours
      {"switchyard_calls_refused_total", {"counter", "engine,model_name,reason", ""}},
      {"switchyard_otlp_spans_total", {"counter", "engine,model_name,result", ""}},
      {"switchyard_request_log_dropped_total", {"counter", kOurs, ""}},
      {"switchyard_request_errors_total", {"counter", "code,engine,model_name", ""}},
      {"switchyard_tokenize_seconds_total", {"counter", kOurs, ""}},
      {"switchyard_constraint_compile_seconds_total", {"counter", kOurs, ""}},
      {"switchyard_constraint_masks_total", {"counter", kOurs, ""}},
      {"switchyard_num_waiting_tokens", {"gauge", kOurs, ""}},
      {"switchyard_step_seconds", {"histogram", kOurs, kStep}},
      {"switchyard_publish_seconds", {"histogram", kOurs, kStep}},
      {"process_start_time_seconds", {"gauge", kOurs, ""}},
      {"switchyard_ready", {"gauge", kOurs, ""}},
      {"switchyard_group_epoch", {"gauge", kOurs, ""}},
      {"switchyard_workers", {"gauge", kOurs, ""}},
      {"switchyard_groups_lost_total", {"counter", kOurs, ""}},
      {"switchyard_workers_fenced_total", {"counter", kOurs, ""}},
      {"switchyard_local_worker_restarts_total", {"counter", kOurs, ""}},
      {"switchyard_open_streams", {"gauge", kOurs, ""}},
      {"switchyard_open_connections", {"gauge", kOurs, ""}},
      {"switchyard_connections_refused_total", {"counter", kOurs, ""}},
      {"switchyard_http_requests_total", {"counter", "engine,model_name,path,status", ""}},
      {"switchyard_http_answers_cut_total", {"counter", "engine,model_name,reason", ""}},
      {"switchyard_connections_ended_total", {"counter", "engine,limit,model_name", ""}},
      {"switchyard_tls_handshakes_failed_total", {"counter", kOurs, ""}},
      {"switchyard_waiting_clients", {"gauge", kOurs, ""}},
      {"switchyard_unfinished_call_bytes", {"gauge", kOurs, ""}},
      {"switchyard_waiting_text_bytes", {"gauge", kOurs, ""}},
      {"switchyard_texts_refused_total", {"counter", kOurs, ""}},
  };
  return families;
}

// What API keys, a certificate and adapters add.
const Families& FamiliesOfOptions() {
  static const Families families = {
      {"switchyard_key_requests_total", {"counter", "engine,key,model_name", ""}},
      {"switchyard_key_tokens_total", {"counter", "engine,key,model_name", ""}},
      {"switchyard_certificate_expiry_seconds", {"gauge", kOurs, ""}},
      {"switchyard_adapter_requests_total", {"counter", "adapter,engine,model_name", ""}},
  };
  return families;
}

const Families& WorkerFamilies() {
  static const Families families = {
      {"switchyard_worker_step_seconds", {"histogram", "", kWorkerStep}},
      {"switchyard_worker_attention_seconds", {"histogram", "", kWorkerStep}},
      {"switchyard_worker_head_seconds", {"histogram", "", kWorkerStep}},
      {"switchyard_worker_moe_expert_seconds", {"histogram", "", kWorkerStep}},
      {"switchyard_worker_moe_exchange_seconds", {"histogram", "", kWorkerStep}},
      {"switchyard_worker_rows_total", {"counter", "", ""}},
      {"switchyard_worker_moe_tokens_computed_total", {"counter", "", ""}},
      {"switchyard_worker_moe_tokens_sent_total", {"counter", "", ""}},
      {"switchyard_worker_moe_tokens_received_total", {"counter", "", ""}},
      {"switchyard_worker_group_faults_total", {"counter", "", ""}},
      {"switchyard_worker_graph_steps_total", {"counter", "", ""}},
      {"switchyard_worker_graph_captures_total", {"counter", "", ""}},
      {"switchyard_worker_graph_capture_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_graphs_without_memory_total", {"counter", "", ""}},
      {"switchyard_worker_cublas_refusals_total", {"counter", "", ""}},
      {"switchyard_worker_expert_hits_total", {"counter", "", ""}},
      {"switchyard_worker_expert_misses_total", {"counter", "", ""}},
      {"switchyard_worker_expert_late_total", {"counter", "", ""}},
      {"switchyard_worker_expert_prefetched_total", {"counter", "", ""}},
      {"switchyard_worker_expert_wasted_total", {"counter", "", ""}},
      {"switchyard_worker_expert_copied_bytes_total", {"counter", "", ""}},
      {"switchyard_worker_expert_copy_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_expert_failed_copies_total", {"counter", "", ""}},
      {"switchyard_worker_expert_wait_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_expert_plan_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_expert_host_rows_total", {"counter", "", ""}},
      {"switchyard_worker_expert_host_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_placement_gather_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_placement_decide_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_placement_decide_cpu_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_placement_fine_tuned_layers_total", {"counter", "", ""}},
      {"switchyard_worker_placement_fill_copies_total", {"counter", "", ""}},
      {"switchyard_worker_placement_demand_copies_total", {"counter", "", ""}},
      {"switchyard_worker_placement_prefetch_copies_total", {"counter", "", ""}},
      {"switchyard_worker_placement_copied_bytes_total", {"counter", "", ""}},
      {"switchyard_worker_placement_failed_copies_total", {"counter", "", ""}},
      {"switchyard_worker_placement_late_copies_total", {"counter", "", ""}},
      {"switchyard_worker_placement_wait_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_forecast_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_weight_bytes", {"gauge", "", ""}},
      {"switchyard_worker_shared_weight_bytes", {"gauge", "", ""}},
      {"switchyard_worker_device_bytes", {"gauge", "", ""}},
      {"switchyard_worker_kv_blocks", {"gauge", "", ""}},
      {"switchyard_worker_rank", {"gauge", "", ""}},
      {"switchyard_worker_group_epoch", {"gauge", "", ""}},
      {"switchyard_worker_train_step_seconds", {"histogram", "", kWorkerStep}},
      {"switchyard_worker_train_checkpoint_seconds", {"histogram", "", kWorkerStep}},
      {"switchyard_worker_train_yield_seconds", {"histogram", "", kWorkerStep}},
      {"switchyard_worker_train_late_yields_total", {"counter", "", ""}},
      {"switchyard_worker_train_slice_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_steps_total", {"counter", "", ""}},
      {"switchyard_worker_train_tokens_total", {"counter", "", ""}},
      {"switchyard_worker_train_forward_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_backward_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_expert_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_all_to_all_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_all_reduce_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_optimizer_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_offload_wait_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_activation_wait_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_saved_activation_bytes_total", {"counter", "", ""}},
      {"switchyard_worker_train_data_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_checkpoint_wait_seconds_total", {"counter", "", ""}},
      {"switchyard_worker_train_checkpoint_bytes_total", {"counter", "", ""}},
      {"switchyard_worker_train_dropped_rows_total", {"counter", "", ""}},
      {"switchyard_worker_train_packing_decisions_total", {"counter", "", ""}},
      {"switchyard_worker_train_frames_total", {"counter", "class", ""}},
      {"switchyard_worker_train_frame_bytes_total", {"counter", "class", ""}},
      {"switchyard_worker_train_overtaken_total", {"counter", "", ""}},
      {"switchyard_worker_train_step", {"gauge", "", ""}},
      {"switchyard_worker_train_loss", {"gauge", "", ""}},
      {"switchyard_worker_train_gradient_norm", {"gauge", "", ""}},
      {"switchyard_worker_train_learning_rate", {"gauge", "", ""}},
      {"switchyard_worker_train_tokens_per_second", {"gauge", "", ""}},
      {"switchyard_worker_train_dead_experts", {"gauge", "", ""}},
      {"switchyard_worker_train_packing", {"gauge", "", ""}},
      {"switchyard_worker_train_offloaded_bytes", {"gauge", "", ""}},
      {"switchyard_worker_train_checkpoint_timestamp_seconds", {"gauge", "", ""}},
  };
  return families;
}

// Families of workers that predict the load of coming layers' experts.
Families ForecastingWorkerFamilies() {
  Families families = WorkerFamilies();
  families["switchyard_worker_estimate_distance_ratio"] = {"gauge", "ahead,estimator,phase", ""};
  families["switchyard_worker_estimate_accuracy_ratio"] = {"gauge", "ahead,estimator,phase", ""};
  return families;
}

class MetricsTest : public SharedServerTest {
 protected:
  std::vector<std::string> WorkerAddresses() {
    std::vector<std::string> out;
    const auto load = client_->GetLoad();
    EXPECT_TRUE(load.ok()) << load.status();
    if (!load.ok()) return out;
    for (const v1::WorkerLoad& worker : load->workers()) out.push_back(worker.metrics_address());
    return out;
  }
};

TEST_F(MetricsTest, TheServersPageIsThatOfTheTable) {
  ASSERT_TRUE(Generate(*client_, TextRequest("The", 4)).ok());
  v1::GenerateRequest elsewhere = TextRequest("The", 4);
  elsewhere.set_model("nope");
  ASSERT_FALSE(Generate(*client_, elsewhere).ok());  // families without a sample do not show
  const std::string page = Scrape(server_->metrics_address());
  EXPECT_THAT(Parse(page), testing::ContainerEq(ServerFamilies()));
  EXPECT_THAT(page, Not(HasSubstr("request_id")));
}

TEST_F(MetricsTest, EveryWorkersPageIsThatOfTheTable) {
  const std::vector<std::string> addresses = WorkerAddresses();
  ASSERT_EQ(addresses.size(), 2u);
  EXPECT_NE(addresses[0], addresses[1]);
  for (const std::string& address : addresses) {
    EXPECT_THAT(Parse(Scrape(address)), testing::ContainerEq(WorkerFamilies())) << address;
  }
}

// Whatever is predicted, the tokens are the same.
TEST_F(MetricsTest, EstimatesAreScoredOnWorkersThatForesee) {
  const auto server = TestServer::Start({.workers = 2, .flags = {"--forecast=always"}});
  ASSERT_NE(server, nullptr);
  const auto plain = TestServer::Start({.workers = 2, .flags = {"--forecast=never"}});
  ASSERT_NE(plain, nullptr);
  for (const char* prompt : {"The", "def main():"}) {
    const v1::GenerateRequest request = TextRequest(prompt, 40);
    const StreamSeen seen = Generate(server->client(), request), without = Generate(plain->client(), request);
    ASSERT_TRUE(seen.ok()) << seen.end;
    EXPECT_EQ(seen.choices[0].token_ids, without.choices[0].token_ids);
  }
  const auto load = server->client().GetLoad();
  ASSERT_TRUE(load.ok()) << load.status();
  double spent = 0, reported = 0;
  for (const v1::WorkerLoad& worker : load->workers()) {
    const std::string page = Scrape(worker.metrics_address());
    spent += Value(page, "switchyard_worker_forecast_seconds_total");
    // Both of one sequence at a time are on one worker, or on each.
    if (!HasLine(page, "switchyard_worker_estimate_distance_ratio{")) continue;
    EXPECT_THAT(Parse(page), testing::ContainerEq(ForecastingWorkerFamilies()));
    EXPECT_GT(Value(page, "switchyard_worker_estimate_distance_ratio{ahead=\"1\",estimator=\"marginal\","), 0);
    EXPECT_LE(Value(page, "switchyard_worker_estimate_distance_ratio{ahead=\"1\",estimator=\"gate_ahead\","), 1);
    ++reported;
  }
  EXPECT_GT(spent, 0);
  EXPECT_GT(reported, 0);
}

TEST_F(MetricsTest, GoodEndsAreCountedByReason) {
  const auto success = [this](const char* reason) {
    return Value(Scrape(server_->metrics_address()),
                 absl::StrCat("switchyard_request_success_total{engine=\"0\",finished_reason=\"", reason, "\""));
  };
  for (const char* reason : {"none", "deadline", "error", "unavailable"}) EXPECT_EQ(success(reason), -1) << reason;
  const double length = success("length"), abort = success("abort");
  v1::GenerateRequest two = TextRequest("The", 4);
  two.set_n(2);
  ASSERT_TRUE(Generate(*client_, two).ok());
  EXPECT_EQ(success("length"), length + 2);  // choices are counted
  EXPECT_EQ(success("abort"), abort);
}

TEST_F(MetricsTest, TheLongestChoiceAndTheExchangedTokensAreSeen) {
  const std::string before = Scrape(server_->metrics_address());
  v1::GenerateRequest request = TextRequest("The", 7);
  request.set_n(3);
  ASSERT_TRUE(Generate(*client_, request).ok());
  const std::string after = Scrape(server_->metrics_address());
  const auto grown = [&](const std::string& name) { return Value(after, name) - std::max(0.0, Value(before, name)); };
  EXPECT_EQ(grown("switchyard_request_max_num_generation_tokens_count{"), 1);
  EXPECT_EQ(grown("switchyard_request_max_num_generation_tokens_sum{"), 7);
  EXPECT_EQ(grown("switchyard_request_generation_tokens_sum{"), 21);
  EXPECT_GT(grown("switchyard_moe_tokens_exchanged_total{"), 0);
  for (const char* phase : {"prefill", "decode"}) {
    EXPECT_GT(
        grown(absl::StrCat("switchyard_moe_balancedness_ratio_count{engine=\"0\",model_name=\"demo-model\",phase=\"",
                           phase, "\"")),
        0)
        << phase;
  }
  // One rank computes the rows that the other sends; the server sums both.
  double sent = 0, received = 0;
  for (const std::string& address : WorkerAddresses()) {
    const std::string page = Scrape(address);
    sent += Value(page, "switchyard_worker_moe_tokens_sent_total ");
    received += Value(page, "switchyard_worker_moe_tokens_received_total ");
  }
  EXPECT_EQ(sent, received);
  EXPECT_EQ(sent, Value(after, "switchyard_moe_tokens_exchanged_total{"));
}

TEST_F(MetricsTest, TheCacheIsDescribed) {
  const auto load = client_->GetLoad();
  ASSERT_TRUE(load.ok()) << load.status();
  int blocks = 0;
  for (const v1::WorkerLoad& worker : load->workers()) blocks += worker.kv_blocks_total();
  EXPECT_THAT(Scrape(server_->metrics_address()),
              HasSubstr(absl::StrCat("switchyard_cache_config_info{block_size=\"16\",cache_dtype=\"bf16\","
                                     "enable_prefix_caching=\"True\",engine=\"0\",model_name=\"demo-model\","
                                     "num_gpu_blocks=\"",
                                     blocks, "\"} 1")));
}

// In this process: servers with keys, a certificate or adapters are those of KeyMetricsTest, TlsTest and AdaptersTest.
TEST(OptionalMetricsTest, WhatOptionsAddIsInTheTable) {
  server::ServerMetrics metrics("tiny");
  const Families without = Parse(metrics.Page());
  metrics.key_requests("alice").Increment();
  metrics.key_tokens("alice").Increment();
  metrics.certificate_expiry().Set(1);
  metrics.SetAdapters({"pirate"});
  Families added = Parse(metrics.Page());
  std::erase_if(added, [&](const auto& entry) { return without.contains(entry.first); });
  EXPECT_THAT(added, testing::ContainerEq(FamiliesOfOptions()));
}

// What `promtool check metrics` says of a page: its exit code and output.
void ExpectPromtoolAccepts(const std::string& page) {
  ASSERT_THAT(page, HasSubstr("# TYPE switchyard_"));
  std::string path = "/tmp/switchyard-metrics-XXXXXX";
  const int fd = mkstemp(path.data());
  ASSERT_EQ(write(fd, page.data(), page.size()), static_cast<ssize_t>(page.size()));
  close(fd);
  const auto promtool = Process::Start({"/bin/sh", "-c", "promtool check metrics < " + path});
  EXPECT_EQ(promtool->Wait(absl::Seconds(30)).value_or(-1), 0) << promtool->Output();
  unlink(path.c_str());
}

TEST_F(MetricsTest, PromtoolAcceptsEveryPage) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "promtool is not installed; deploy/install-deps.sh --tests brings it";
  ASSERT_TRUE(Generate(*client_, TextRequest("The", 4)).ok());
  ExpectPromtoolAccepts(Scrape(server_->metrics_address()));
  for (const std::string& address : WorkerAddresses()) ExpectPromtoolAccepts(Scrape(address));
}

// Whether nothing listens on that port of 127.0.0.1.
bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;  // as servers do
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
  close(fd);
  return free;
}

// The first of two ports that are free, below those that connections are given; 0: none was found.
int FreePair() {
  for (int i = 0; i < 100; ++i) {
    const int first = 20000 + (getpid() + 977 * i) % 12000;
    if (IsFree(first) && IsFree(first + 1)) return first;
  }
  return 0;
}

// The reported addresses are the chosen ones, from which scrape configurations are written.
TEST(WorkerMetricsTest, PortsFollowTheFlagOrThereAreNone) {
  const int first = FreePair();
  ASSERT_GT(first, 0);
  const auto server =
      TestServer::Start({.model = kTinyModel, .workers = 2, .flags = {absl::StrCat("--worker_metrics_port=", first)}});
  ASSERT_NE(server, nullptr);
  auto load = server->client().GetLoad();
  ASSERT_TRUE(load.ok()) << load.status();
  std::set<std::string> addresses;
  for (const v1::WorkerLoad& worker : load->workers()) addresses.insert(worker.metrics_address());
  EXPECT_THAT(addresses,
              testing::ElementsAre(absl::StrCat("127.0.0.1:", first), absl::StrCat("127.0.0.1:", first + 1)));
  const auto mute = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--worker_metrics_port=-1"}});
  ASSERT_NE(mute, nullptr);
  load = mute->client().GetLoad();
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(load->workers(0).metrics_address(), "");
}

}  // namespace
}  // namespace switchyard
