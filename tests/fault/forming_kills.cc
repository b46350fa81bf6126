// Kills and stops workers while their group forms, and says how long it takes until a group has formed again.
//
//   fault_forming_kills [--kills=N] [--workers=N] [--seed=N] [--until_ms=N]
// Every try ends a worker so that the group forms anew, and strikes again at a moment of the forming, swept over
// 0..until_ms after its begin: a survivor or the new worker, by SIGKILL or SIGSTOP, every fourth time two strokes.
// The time runs from the last stroke until a later epoch is ready.  Prints the distribution for each kind, and the log
// of the slowest try.
#include <signal.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/fault/own_flags.h"

namespace switchyard {
namespace {

int g_kills = 6, g_workers = 2, g_until_ms = 300;  // set once, by main
uint64_t g_seed = 1;

// What a server's log says of its group.
struct Seen {
  int64_t forming = 0, ready = 0;  // the last epochs that began to form, and that were ready
  std::vector<pid_t> pids;         // of the workers that registered, in that order
};

int64_t NumberAfter(absl::string_view line, absl::string_view mark) {
  const size_t at = line.find(mark);
  if (at == absl::string_view::npos) return -1;
  const absl::string_view rest = line.substr(at + mark.size());
  int64_t number = -1;
  const bool is_number = absl::SimpleAtoi(rest.substr(0, rest.find_first_not_of("0123456789")), &number);
  return is_number ? number : -1;
}

Seen Read(const std::string& log) {
  Seen seen;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    seen.forming = std::max(seen.forming, NumberAfter(line, " forms, epoch "));
    seen.ready = std::max(seen.ready, NumberAfter(line, "group ready: epoch "));
    if (const int64_t pid = NumberAfter(line, " registered: pid "); pid > 0)
      seen.pids.push_back(static_cast<pid_t>(pid));
  }
  return seen;
}

class Forming {
 public:
  explicit Forming(TestServer* server) : server_(server) {}

  Seen seen() const { return Read(server_->process().Output()); }
  bool AwaitForming(int64_t after) const {
    return Await([&](const Seen& seen) { return seen.forming > after; });
  }
  bool AwaitReady(int64_t after) const {
    return Await([&](const Seen& seen) { return seen.ready > after; });
  }
  // The processes of the workers now, the one that came last at the end.
  std::vector<pid_t> Workers() const {
    std::vector<pid_t> pids = seen().pids;
    const auto is_gone = [](pid_t pid) { return kill(pid, 0) != 0; };
    pids.erase(std::remove_if(pids.begin(), pids.end(), is_gone), pids.end());
    return pids;
  }

 private:
  template <class Wanted>
  bool Await(const Wanted& wanted) const {
    return WaitUntil([&] { return wanted(seen()); }, absl::Seconds(60));
  }

  TestServer* const server_;
};

void Print(const std::string& kind, std::vector<double> seconds) {
  if (seconds.empty()) return;
  std::sort(seconds.begin(), seconds.end());
  const size_t last = seconds.size() - 1;
  std::printf("  %-22s %4zu tries: median %.3f s, p90 %.3f s, p99 %.3f s, max %.3f s\n", kind.c_str(), seconds.size(),
              seconds[seconds.size() / 2], seconds[std::min(last, seconds.size() * 9 / 10)],
              seconds[std::min(last, seconds.size() * 99 / 100)], seconds[last]);
}

TEST(FormingKillsTest, AGroupFormsAgainWhateverDiesWhileItForms) {
  const auto server = TestServer::Start({.workers = g_workers, .flags = {"--threads=1"}});
  ASSERT_NE(server, nullptr);
  const Forming group(server.get());
  std::mt19937_64 random(g_seed);
  std::map<std::string, std::vector<double>> seconds;
  double slowest = 0;
  std::string slowest_log;
  for (int i = 0; i < g_kills; ++i) {
    const int64_t before = group.seen().forming;
    std::vector<pid_t> workers = group.Workers();
    ASSERT_FALSE(workers.empty());
    kill(workers[random() % workers.size()], SIGKILL);
    ASSERT_TRUE(group.AwaitForming(before)) << i;
    absl::SleepFor(absl::Milliseconds(g_kills == 1 ? 0 : i * g_until_ms / (g_kills - 1)));
    const int strokes = i % 4 == 3 ? 2 : 1;
    const int signal = random() % 2 == 0 ? SIGKILL : SIGSTOP;
    int64_t struck = 0;
    std::string kind = signal == SIGKILL ? "SIGKILL" : "SIGSTOP";
    for (int stroke = 0; stroke < strokes; ++stroke) {
      if (stroke > 0) absl::SleepFor(absl::Milliseconds(random() % static_cast<uint64_t>(g_until_ms + 1)));
      workers = group.Workers();
      ASSERT_FALSE(workers.empty());
      const bool newest = random() % 2 == 0;
      kill(newest ? workers.back() : workers.front(), signal);
      struck = group.seen().forming;
      if (stroke == 0) absl::StrAppend(&kind, newest ? " of the new one" : " of a survivor");
    }
    if (strokes == 2) kind = absl::StrCat(signal == SIGKILL ? "SIGKILL" : "SIGSTOP", " twice");
    const absl::Time begin = absl::Now();
    const size_t log_before = server->process().Output().size();
    ASSERT_TRUE(group.AwaitReady(struck)) << kind << " at try " << i;
    const double took = absl::ToDoubleSeconds(absl::Now() - begin);
    seconds[kind].push_back(took);
    seconds[signal == SIGKILL ? "all SIGKILL" : "all SIGSTOP"].push_back(took);
    if (took > slowest) {
      slowest = took;
      slowest_log = absl::StrCat("try ", i, ", ", kind, ":\n", server->process().Output().substr(log_before));
    }
  }
  for (const auto& [kind, all] : seconds) Print(kind, all);
  std::cout << "  the slowest, " << slowest << " s: " << slowest_log << "\n";
  EXPECT_TRUE(server->WaitReady(true, absl::Seconds(10)));
  EXPECT_TRUE(Generate(server->client(), TextRequest("A", 8)).ok());
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using namespace switchyard;  // NOLINT
  return RunWithFlags(argc, argv,
                      {{"--kills=", NumberFrom(1, &g_kills)},
                       {"--workers=", NumberFrom(1, &g_workers)},
                       {"--until_ms=", NumberFrom(1, &g_until_ms)},
                       {"--seed=", Seed(&g_seed)}});
}
