// --rebalance_steps: the same tokens while experts move, and when a worker dies meanwhile.
#include <signal.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/expert_servers.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(60);
std::vector<v1::GenerateRequest> Requests() {
  std::vector<v1::GenerateRequest> requests;
  for (const char* prompt : kPrompts) requests.push_back(TextRequest(prompt, kTokens));
  return requests;
}

// Returns the sum of the page's samples that begin so.
double SumOf(const std::string& page, const std::string& begin) {
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, begin) && absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) sum += value;
  }
  return sum;
}

const std::vector<std::string> kFlags = {"--placement=agreed", "--spare_slots=1", "--replica_slots=2",
                                         "--rebalance_steps=16"};

class RebalanceTest : public ExpertServersTest {
 protected:
  static const std::vector<std::vector<int32_t>>& Expected() {
    static const auto* const kExpected = [] {
      const auto server = TestServer::Start({.workers = 2, .flags = {"--threads=1"}});
      return new std::vector<std::vector<int32_t>>(server == nullptr ? decltype(Tokens(nullptr)){}
                                                                     : Tokens(server.get()));
    }();
    return *kExpected;
  }
  static double Plans(TestServer* server, const std::string& outcome) {
    return SumOf(
        Scrape(server->metrics_address()),
        absl::StrCat("switchyard_placement_plans_total{engine=\"0\",model_name=\"demo-model\",outcome=\"", outcome));
  }
  static v1::GetExpertsResponse Experts(TestServer* server, int layer, int expert) {
    v1::GetExpertsRequest request;
    request.mutable_why()->set_layer(layer);
    request.mutable_why()->set_expert(expert);
    const auto answer = server->client().GetExperts(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : v1::GetExpertsResponse();
  }
};

// The demo model's routing is skewed enough that a replica slot is worth its copy.
TEST_F(RebalanceTest, ExpertsMoveWhileRequestsRunAndTokensStayTheSame) {
  const auto server = Start(2, kFlags);
  ASSERT_NE(server, nullptr);
  const absl::Time limit = absl::Now() + kLimit;
  while (Plans(server.get(), "committed") < 1 && absl::Now() < limit) {
    ASSERT_EQ(Tokens(server.get()), Expected());
  }
  EXPECT_EQ(Tokens(server.get()), Expected()) << "by the new placement";
  const std::string page = Scrape(server->metrics_address());
  EXPECT_GE(Plans(server.get(), "committed"), 1) << server->process().Output();
  EXPECT_GE(SumOf(page, "switchyard_moved_experts_total{"), 1);
  EXPECT_GE(SumOf(page, "switchyard_moved_expert_bytes_total{"), 110592);
  const v1::GetExpertsResponse experts = Experts(server.get(), 0, 0);
  EXPECT_EQ(experts.placement(), "agreed");
  EXPECT_GE(experts.placement_epoch(), 1);
  EXPECT_THAT(experts.why(), HasSubstr("Layer 0, expert 0"));
  EXPECT_EQ(SumOf(page, "switchyard_groups_lost_total{"), 0) << server->process().Output();
  int replicas = 0;
  for (const v1::LayerExperts& layer : experts.layers()) {
    for (const v1::ExpertUse& expert : layer.experts()) replicas += expert.workers_size() > 1 ? 1 : 0;
  }
  EXPECT_GE(replicas, 1);
}

// Kills a worker in the middle of a plan: its copies take about a second, which the server does not know when it plans.
TEST_F(RebalanceTest, AWorkerDiesWhileAPlanIsCarriedOut) {
  std::vector<std::string> flags = kFlags;
  flags.push_back("--workers=2");
  flags.push_back(absl::StrCat("--expert_file_dir=", dir_.path()));
  flags.push_back("--threads=1");
  const auto server = TestServer::Start({.workers = 1, .flags = flags, .wait_ready = false});
  ASSERT_NE(server, nullptr);
  const auto join = [&](const std::string& flag) {
    return Process::Start({Binary("switchyard-worker"), "--server=" + server->address(),
                           absl::StrCat("--model=", kDemoModel), "--threads=1",
                           absl::StrCat("--expert_file_dir=", dir_.path()), flag});
  };
  const auto slow = join("--expert_copy_bytes_per_second=2e6");
  ASSERT_TRUE(server->WaitReady(true, kLimit)) << server->process().Output();
  std::atomic<bool> stop = false;
  std::thread traffic([&] {
    while (!stop) (void)GenerateAll(server->client(), Requests());
  });
  EXPECT_TRUE(server->process().WaitForOutput("experts: a plan of", kLimit));
  slow->Signal(SIGKILL);
  EXPECT_TRUE(server->WaitReady(false, kLimit));
  stop = true;
  traffic.join();
  const auto next = join("--expert_copy_bytes_per_second=0");
  ASSERT_TRUE(server->WaitReady(true, kLimit)) << server->process().Output();
  EXPECT_EQ(Tokens(server.get()), Expected());
  EXPECT_GE(Plans(server.get(), "aborted"), 1);
  EXPECT_THAT(server->process().Output(), HasSubstr("a plan was aborted: after 0 of"));
}

}  // namespace
}  // namespace switchyard
