// Kills and stops workers at random moments under many streams: no request is lost, and each gets the tokens, texts,
// logprobs and experts of an undisturbed run.
//
//   fault_worker_kills [--kills=N] [--streams=N] [--workers=N] [--seed=N]
// 6 kills under 8 streams by default, for CI; a seed repeats targets and pauses.  A third of them are SIGSTOP, and some
// come while the group still forms.  Clients send one request after the other, also while no group stands.  Prints how
// long no client got a token after each.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "clients/cpp/client_error.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/fault/own_flags.h"
#include "tests/fault/process_usage.h"

namespace switchyard {
namespace {

int g_kills = 6, g_streams = 8, g_workers = 2;  // set once, by main
uint64_t g_seed = 1;

// Greedy and sampled ones, short and long, with all that a request may ask for.
std::vector<v1::GenerateRequest> Requests() {
  std::vector<v1::GenerateRequest> requests;
  const char* const texts[] = {"In the beginning", "The sea is", "A", "He said that the king of the"};
  for (int i = 0; i < 24; ++i) {
    v1::GenerateRequest request = i % 3 == 0
                                      ? IdsRequest(RandomIds(20 + 23 * i, 512, static_cast<uint64_t>(i)), 40 + 13 * i)
                                      : TextRequest(texts[i % 4], 60 + 11 * i);
    if (i % 2 == 1) {
      request.mutable_sampling()->set_temperature(0.9);
      request.mutable_sampling()->set_top_p(0.95);
      request.mutable_sampling()->set_seed(static_cast<uint64_t>(1000 + i));
    }
    if (i % 4 == 1) request.set_n(2);
    if (i % 6 == 2) request.set_logprobs(3);
    if (i % 6 == 3) request.set_prompt_logprobs(2);
    if (i % 8 == 4) request.add_stop(" the");
    if (i % 8 == 5) request.set_return_expert_paths(true);
    if (i % 12 == 7) request.mutable_sampling()->set_repetition_penalty(1.2);
    requests.push_back(std::move(request));
  }
  return requests;
}

// What differs from the undisturbed answer; empty: nothing.
std::string Difference(const StreamSeen& seen, const StreamSeen& wanted) {
  if (!seen.end.ok()) return absl::StrCat("ended with ", client::Describe(seen.end).reason, ": ", seen.end.message());
  if (!seen.fault.empty()) return seen.fault;
  if (seen.choices.size() != wanted.choices.size()) return "other choices";
  const auto same = [](const auto& a, const auto& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const auto& x, const auto& y) { return x.SerializeAsString() == y.SerializeAsString(); });
  };
  if (!same(seen.prompt_logprobs, wanted.prompt_logprobs)) return "other logprobs of the prompt";
  for (size_t c = 0; c < seen.choices.size(); ++c) {
    const StreamSeen::Choice &a = seen.choices[c], &b = wanted.choices[c];
    if (a.token_ids != b.token_ids) {
      const auto [at, other] =
          std::mismatch(a.token_ids.begin(), a.token_ids.end(), b.token_ids.begin(), b.token_ids.end());
      return absl::StrCat("another token ", at - a.token_ids.begin(), " of ", b.token_ids.size(), ", ",
                          a.token_ids.size(), " came");
    }
    if (a.text != b.text) return "another text";
    if (a.finish.reason() != b.finish.reason() || a.finish.stop_string() != b.finish.stop_string())
      return "another end";
    if (!same(a.logprobs, b.logprobs)) return "other logprobs";
    if (a.paths.SerializeAsString() != b.paths.SerializeAsString()) return "other experts";
  }
  return "";
}

class Crowd {
 public:
  Crowd(const TestServer& server, const std::vector<v1::GenerateRequest>& requests,
        const std::vector<StreamSeen>& wanted)
      : server_(server), requests_(requests), wanted_(wanted) {
    for (int i = 0; i < g_streams; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  void Stop() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }
  // The longest time since `from` in which nobody got a token, up to now.
  absl::Duration LongestSilence(absl::Time from) {
    absl::MutexLock lock(&mu_);
    absl::Duration longest = absl::ZeroDuration();
    absl::Time last = from;
    for (auto at = std::lower_bound(tokens_.begin(), tokens_.end(), from); at != tokens_.end(); ++at) {
      longest = std::max(longest, *at - last);
      last = *at;
    }
    return std::max(longest, absl::Now() - last);
  }
  bool AwaitToken(absl::Time after, absl::Duration limit) {
    absl::MutexLock lock(&mu_);
    const auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !tokens_.empty() && tokens_.back() > after; };
    return mu_.AwaitWithTimeout(absl::Condition(&came), limit);
  }
  int64_t whole() const { return whole_.load(); }
  std::map<std::string, int> faults() {
    absl::MutexLock lock(&mu_);
    return faults_;
  }

 private:
  void Run(int number) {
    const auto client = server_.Connect(absl::Seconds(280));
    std::mt19937_64 random(g_seed * 1000 + static_cast<uint64_t>(number));
    while (client != nullptr && !stop_.load()) {
      const size_t which = random() % requests_.size();
      StreamSeen seen;
      const auto stream = client->StartGenerate(requests_[which], {.on_message =
                                                                       [&](const v1::GenerateResponse& message) {
                                                                         seen.Add(message);
                                                                         absl::MutexLock lock(&mu_);
                                                                         tokens_.push_back(absl::Now());
                                                                       },
                                                                   .on_done = nullptr});
      seen.end = stream->Wait();
      const std::string difference = Difference(seen, wanted_[which]);
      if (difference.empty()) {
        ++whole_;
        continue;
      }
      absl::MutexLock lock(&mu_);
      ++faults_[absl::StrCat("request ", which, ": ", difference)];
    }
  }

  const TestServer& server_;
  const std::vector<v1::GenerateRequest>& requests_;
  const std::vector<StreamSeen>& wanted_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> whole_{0};
  absl::Mutex mu_;
  std::vector<absl::Time> tokens_ ABSL_GUARDED_BY(mu_);  // when each message came, to whomever
  std::map<std::string, int> faults_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;  // last: they use what is above
};

TEST(WorkerKillsTest, StreamsGoOnAsIfNothingHadBeen) {
  const auto server = TestServer::Start(
      {.model = kDemoModel, .workers = g_workers, .flags = {"--threads=1", "--max_streams_per_client=256"}});
  ASSERT_NE(server, nullptr);
  const std::vector<v1::GenerateRequest> requests = Requests();
  const std::vector<StreamSeen> wanted = GenerateAll(server->client(), requests);
  for (size_t i = 0; i < wanted.size(); ++i)
    ASSERT_TRUE(wanted[i].ok()) << i << ": " << wanted[i].end << wanted[i].fault;

  const ProcessUsage before = UsageOf(server->process().pid());
  Crowd crowd(*server, requests, wanted);
  std::mt19937_64 random(g_seed);
  std::vector<double> silences;
  for (int kills = 0; kills < g_kills;) {
    absl::SleepFor(absl::Milliseconds(random() % 1000));  // somewhere in a step
    const absl::Time begin = absl::Now();
    // Half a second after one of four a second one follows, while the group forms.
    const int strokes = random() % 4 == 0 && kills + 1 < g_kills ? 2 : 1;
    for (int stroke = 0; stroke < strokes; ++stroke, ++kills) {
      std::vector<pid_t> pids = server->WorkerPids();
      pids.erase(std::remove(pids.begin(), pids.end(), 0), pids.end());  // of ranks that have no worker yet
      if (!pids.empty()) kill(pids[random() % pids.size()], random() % 3 == 0 ? SIGSTOP : SIGKILL);
      if (stroke + 1 < strokes) absl::SleepFor(absl::Milliseconds(random() % 500));
    }
    ASSERT_TRUE(server->WaitReady(false, absl::Seconds(5)) || strokes == 2) << "kill " << kills;
    ASSERT_TRUE(server->WaitReady(true, absl::Seconds(60))) << "kill " << kills;
    ASSERT_TRUE(crowd.AwaitToken(absl::Now(), absl::Seconds(60))) << "kill " << kills;
    if (strokes == 1) silences.push_back(absl::ToDoubleSeconds(crowd.LongestSilence(begin)));
  }
  crowd.Stop();
  for (const auto& [fault, count] : crowd.faults()) ADD_FAILURE() << count << " x " << fault;
  EXPECT_GT(crowd.whole(), 0);
  EXPECT_TRUE(server->WaitIdle());
  const ProcessUsage after = UsageOf(server->process().pid());
  EXPECT_LE(after.fds, before.fds + 4);
  EXPECT_LE(after.threads, before.threads + 4);
  std::sort(silences.begin(), silences.end());
  std::cout << "  " << g_kills << " kills, " << crowd.whole() << " requests as undisturbed, " << crowd.faults().size()
            << " other ends\n  the idle server before and after: " << before.fds << " and " << after.fds
            << " descriptors, " << before.threads << " and " << after.threads << " threads, " << before.rss_kb / 1024
            << " and " << after.rss_kb / 1024 << " MiB\n";
  if (!silences.empty()) {
    std::cout << "  no token for " << silences[silences.size() / 2] << " s in the median, " << silences.back()
              << " s at most (single kills, " << silences.size() << ")\n";
  }
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using namespace switchyard;  // NOLINT
  return RunWithFlags(argc, argv,
                      {{"--kills=", NumberFrom(1, &g_kills)},
                       {"--streams=", NumberFrom(1, &g_streams)},
                       {"--workers=", NumberFrom(1, &g_workers)},
                       {"--seed=", Seed(&g_seed)}});
}
