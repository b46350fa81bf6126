// Server-sent events to readers that are slow, read nothing or are gone, beside eight streams that go on (four of gRPC,
// four of HTTP): slow readers get all of their answer, or are cut and counted, and nothing of them stays behind.
//
//   fault_http_readers [--streams=N] [--seconds=N]
// Half of the N streams (32 by default) read a byte every 50 ms for so many seconds (2), the others nothing; then all
// read the rest.  Prints gaps between tokens and what the server holds; times are never asserted.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/e2e/http_client.h"
#include "tests/fault/floods/steady_streams.h"
#include "tests/fault/own_flags.h"
#include "tests/fault/process_usage.h"

namespace switchyard {
namespace {

using nlohmann::json;
using Connections = std::vector<std::unique_ptr<HttpConnectionForTests>>;

int g_streams = 32, g_seconds = 2;  // set once, by main

constexpr char kPath[] = "/v1/completions";
constexpr int kGreedy = 2;        // answers of 6 MB, which no buffers on their way hold
constexpr int kFewThreads = 8;    // by which pools may have grown
constexpr int kBuffer = 4 << 10;  // of a slow reader's socket
constexpr int64_t kMostMegabytes = 200;
constexpr absl::Duration kPatience = absl::Seconds(60);

json Request(int max_tokens) {
  return {{"prompt", "Once"}, {"max_tokens", max_tokens}, {"ignore_eos", true}, {"temperature", 0}, {"stream", true}};
}

// The text of a stream's events.
std::string TextOf(const HttpAnswer& answer) {
  std::string text;
  for (const std::string& event : answer.Events()) {
    const json message = json::parse(event, nullptr, /*allow_exceptions=*/false);
    if (message.contains("choices")) text += message["choices"][0].value("text", "");
  }
  return text;
}

class HttpReadersTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ =
        TestServer::Start({.model = kDemoModel, .workers = 2, .flags = {"--threads=1", "--slow_client_timeout=3s"}});
    ASSERT_NE(server_, nullptr);
    requests_ = SteadyStreams::Requests(8);
    wanted_ = GenerateAll(server_->client(), requests_);
    for (const StreamSeen& seen : wanted_) ASSERT_TRUE(seen.ok()) << seen.end << seen.fault;
    const HttpAnswer answer = HttpCall(server_->http_address(), "POST", kPath, Request(kTokens).dump());
    ASSERT_EQ(answer.status, 200) << answer.body;
    text_ = TextOf(answer);
    ASSERT_FALSE(text_.empty());
  }
  Connections Begin(int count, const json& request, const std::string& path = kPath) const {
    Connections all;
    for (int i = 0; i < count; ++i) {
      all.push_back(std::make_unique<HttpConnectionForTests>(server_->http_address(),
                                                             absl::StrCat("127.0.0.", 2 + i % 4), kBuffer));
      EXPECT_TRUE(all.back()->Request("POST", path, request.dump())) << i;
    }
    return all;
  }
  double Cut(const std::string& reason) const {
    double sum = 0;
    const std::string page = Scrape(server_->metrics_address());
    for (absl::string_view line : absl::StrSplit(page, '\n')) {
      double value = 0;
      if (absl::StartsWith(line, "switchyard_http_answers_cut_total{") && absl::StrContains(line, reason) &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value))
        sum += value;
    }
    return sum;
  }
  ProcessUsage Usage() const { return UsageOf(server_->process().pid()); }

  static constexpr int kTokens = 40;
  std::unique_ptr<TestServer> server_;
  std::vector<v1::GenerateRequest> requests_;
  std::vector<StreamSeen> wanted_;
  std::string text_;  // of the slow readers' answers
};

void Print(const char* when, const Gaps& gaps) {
  std::cout << absl::StreamFormat("gaps %-16s p50 %5.1f  p99 %6.1f  max %6.1f ms  (%d)\n", when,
                                  absl::ToDoubleMilliseconds(gaps.median), absl::ToDoubleMilliseconds(gaps.p99),
                                  absl::ToDoubleMilliseconds(gaps.longest), gaps.count);
}

TEST_F(HttpReadersTest, AllIsReadOrCutAndNothingStays) {
  const ProcessUsage before = Usage();
  SteadyStreams streams(*server_, requests_, wanted_, /*half_http=*/true);
  absl::Time from = absl::Now();
  absl::SleepFor(absl::Seconds(2));
  Print("before", streams.GapsSince(from));
  const ProcessUsage beside = Usage();

  from = absl::Now();
  const Connections slow = Begin(g_streams, Request(kTokens));
  EXPECT_TRUE(streams.AwaitAll(from, kPatience));
  Print("while they begin", streams.GapsSince(from));
  EXPECT_TRUE(WaitUntil([&] { return server_->client().GetLoad()->running_requests() <= 8; }, 2 * kPatience));
  Print("while they run", streams.GapsSince(from));
  from = absl::Now();
  int64_t peak_kb = 0;
  while (absl::Now() - from < absl::Seconds(g_seconds)) {
    for (size_t i = 0; i < slow.size(); i += 2) slow[i]->Fetch(absl::ZeroDuration(), 1);
    peak_kb = std::max(peak_kb, Usage().rss_kb);
    absl::SleepFor(absl::Milliseconds(50));
  }
  Print("while they read", streams.GapsSince(from));
  std::cout << "RSS beside " << slow.size() << " slow readers: " << peak_kb / 1024 << " MB\n";
  for (const auto& connection : slow) {
    const HttpAnswer answer = connection->Read(kPatience);
    EXPECT_TRUE(answer.is_whole);
    EXPECT_EQ(TextOf(answer), text_);
  }
  EXPECT_EQ(Cut("slow_reader"), 0);

  std::string text;
  for (int i = 0; i < 460000; ++i) text += " sea";
  Connections greedy = Begin(kGreedy, {{"prompt", text}, {"return_token_strs", true}}, "/tokenize");
  Connections gone = Begin(g_streams / 4, Request(900));
  for (const auto& connection : gone) EXPECT_TRUE(connection->Fetch(kPatience));
  gone.clear();
  EXPECT_TRUE(WaitUntil([&] { return Cut("client_gone") >= g_streams / 4; }, kPatience));
  EXPECT_TRUE(WaitUntil([&] { return Cut("slow_reader") >= kGreedy; }, kPatience));
  for (const auto& connection : greedy) EXPECT_FALSE(connection->Read(kPatience).is_whole);
  peak_kb = std::max(peak_kb, Usage().rss_kb);
  EXPECT_LE((peak_kb - beside.rss_kb) / 1024, kMostMegabytes) << "MB of growth";

  for (const auto& connection : slow) connection->Close();
  greedy.clear();
  EXPECT_TRUE(WaitUntil([&] { return streams.whole() > 0; }, 2 * kPatience));
  streams.Stop();
  for (const auto& [fault, count] : streams.faults()) ADD_FAILURE() << count << " x " << fault;
  EXPECT_TRUE(server_->WaitIdle());
  EXPECT_TRUE(WaitUntil([&] { return Usage().fds <= before.fds; }, kPatience)) << "descriptors";
  EXPECT_LE(Usage().threads, before.threads + kFewThreads);
  const ProcessUsage after = Usage();
  std::cout << absl::StreamFormat("RSS %d, %d at most, %d MB after; descriptors %d, %d after; threads %d, %d after\n",
                                  beside.rss_kb / 1024, peak_kb / 1024, after.rss_kb / 1024, before.fds, after.fds,
                                  before.threads, after.threads);
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using namespace switchyard;  // NOLINT
  return RunWithFlags(argc, argv,
                      {{"--streams=", NumberFrom(4, &g_streams)}, {"--seconds=", NumberFrom(1, &g_seconds)}});
}
