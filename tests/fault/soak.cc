// Many clients for a while, a third of them cancelling midway, and workers that are killed and stopped: nothing leaks,
// no error but the expected ones, ready again each time.
//
//   fault_soak           ten seconds of 16 clients and two faults
//   fault_soak --full    a minute of 64 clients with a KV cache that is too small (>= 100 preemptions), then 20
//   SIGKILLs
//                        and 20 SIGSTOPs under 16 streams
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "clients/cpp/client_error.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/fault/process_usage.h"

namespace switchyard {
namespace {

bool full = false;

// Clients that send one request after the other until they are stopped; counts how streams ended.
class Crowd {
 public:
  Crowd(const TestServer& server, int count, int context) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, &server, i, context] {
        const auto client = server.Connect();
        std::mt19937_64 random(static_cast<uint64_t>(i));
        while (client != nullptr && !stop_.load()) One(*client, &random, context);
      });
    }
  }
  std::map<std::string, int> Stop() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    absl::MutexLock lock(&mu_);
    return ends_;
  }

 private:
  void One(client::Client& client, std::mt19937_64* random, int context) {
    const int prompt = 1 + static_cast<int>((*random)() % static_cast<uint64_t>(context - 1));
    const int output = std::min(1 + static_cast<int>((*random)() % 200), context - prompt);
    const bool cancels = (*random)() % 3 == 0;
    const int cancel_after = 1 + static_cast<int>((*random)() % 20);
    StreamSeen seen;
    absl::Notification enough;
    auto stream = client.StartGenerate(IdsRequest(RandomIds(prompt, 256, (*random)()), output),
                                       {.on_message =
                                            [&](const v1::GenerateResponse& message) {
                                              seen.Add(message);
                                              const bool reached =
                                                  seen.choices[0].token_ids.size() >= static_cast<size_t>(cancel_after);
                                              if (cancels && reached && !enough.HasBeenNotified()) enough.Notify();
                                            },
                                        .on_done =
                                            [&enough](const absl::Status&) {
                                              if (!enough.HasBeenNotified()) enough.Notify();
                                            }});
    enough.WaitForNotification();  // bounded by the stream's deadline
    if (cancels) stream->Cancel();
    const absl::Status end = stream->Wait();
    std::string how = end.ok() ? "OK" : client::Describe(end).reason;
    if (!seen.fault.empty()) how = seen.fault;
    if (end.ok() && seen.choices[0].token_ids.size() != static_cast<size_t>(output)) how = "short";
    absl::MutexLock lock(&mu_);
    ++ends_[how];
  }

  std::atomic<bool> stop_{false};
  absl::Mutex mu_;
  std::map<std::string, int> ends_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

// The tiny model would give away no rows by itself; here workers also die with rows of others.
constexpr char kTransfers[] = "--min_rebalance_rows=4";

void Print(const std::map<std::string, int>& ends) {
  for (const auto& [how, count] : ends) std::cout << "  " << how << ": " << count << "\n";
}

void ExpectOnly(const std::map<std::string, int>& ends, const std::vector<std::string>& allowed) {
  for (const auto& [how, count] : ends)
    EXPECT_TRUE(std::count(allowed.begin(), allowed.end(), how) == 1) << count << " x " << how;
}

double RowsGiven(const TestServer& server) {
  const std::string page = Scrape(server.metrics_address());
  const size_t at = page.find("\nswitchyard_rows_lent_total");
  return at == std::string::npos ? -1 : std::atof(page.c_str() + page.find(' ', at));
}

TEST(SoakTest, ManyClientsCancellingAndPreempted) {
  const auto server =
      TestServer::Start({.model = kTinyModel, .workers = 2, .flags = {"--kv_cache_bytes=393216", kTransfers}});
  ASSERT_NE(server, nullptr);
  const int context = server->client().GetModelInfo()->max_model_len();
  {
    Crowd warm_up(*server, 8, context);  // connections, pools and caches reach their size
    absl::SleepFor(absl::Seconds(1));
    warm_up.Stop();
  }
  ASSERT_TRUE(server->WaitIdle());
  const ProcessUsage before = UsageOf(server->process().pid());
  Crowd crowd(*server, full ? 64 : 16, context);
  absl::SleepFor(full ? absl::Seconds(60) : absl::Seconds(5));
  const std::map<std::string, int> ends = crowd.Stop();
  Print(ends);
  ExpectOnly(ends, {"OK", "CANCELLED"});
  EXPECT_GT(ends.at("OK"), 10);
  EXPECT_TRUE(server->WaitIdle());
  const int64_t preemptions = server->client().GetLoad()->preemptions();
  std::cout << "  preemptions: " << preemptions << "\n";
  EXPECT_GE(preemptions, full ? 100 : 1);
  EXPECT_GT(RowsGiven(*server), 0);
  const ProcessUsage after = UsageOf(server->process().pid());
  EXPECT_LE(after.fds, before.fds + 4);
  EXPECT_LE(after.rss_kb, before.rss_kb + 50 * 1024);
}

TEST(SoakTest, KillsAndStopsUnderStreams) {
  const auto server = TestServer::Start({.model = kTinyModel, .workers = 2, .flags = {kTransfers}});
  ASSERT_NE(server, nullptr);
  const int context = server->client().GetModelInfo()->max_model_len();
  const ProcessUsage before = UsageOf(server->process().pid());
  Crowd crowd(*server, 16, context);
  std::mt19937 random(5);
  for (int round = 0; round < (full ? 40 : 2); ++round) {
    ASSERT_TRUE(server->WaitReady(true, absl::Seconds(60))) << "round " << round;
    absl::SleepFor(absl::Milliseconds(random() % 300));  // somewhere in a step
    const std::vector<pid_t> pids = server->WorkerPids();
    ASSERT_FALSE(pids.empty());
    ASSERT_EQ(kill(pids[random() % pids.size()], round % 2 == 0 ? SIGKILL : SIGSTOP), 0);
    ASSERT_TRUE(server->WaitReady(false, absl::Seconds(3))) << "round " << round;
  }
  ASSERT_TRUE(server->WaitReady(true, absl::Seconds(60)));
  const std::map<std::string, int> ends = crowd.Stop();
  Print(ends);
  ExpectOnly(ends, {"OK", "CANCELLED"});
  EXPECT_TRUE(server->WaitIdle());
  const ProcessUsage after = UsageOf(server->process().pid());
  EXPECT_LE(after.fds, before.fds + 4);
  EXPECT_LE(after.rss_kb, before.rss_kb + 50 * 1024);
  EXPECT_TRUE(Generate(server->client(), IdsRequest({5, 6}, 4)).ok());
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) switchyard::full = switchyard::full || std::strcmp(argv[i], "--full") == 0;
  return RUN_ALL_TESTS();
}
