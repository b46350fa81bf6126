// Floods of HTTP/2 frames, of HTTP/1.1, connections, calls and texts beside eight streams: the streams go on with the
// tokens of an undisturbed run, memory stays bounded, no worker is blamed, and SIGTERM ends the server while the flood
// goes on.
//
//   fault_floods [--seconds=N] [--only=NAME,...] [--streams=N] [--flags=FLAG,...]
// 1 second of each flood by default, for CI; --flags are further ones of the server.  Prints a table: the gaps between
// a stream's messages before and during the flood, and whether the flood at most doubled the 99th percentile (`held`;
// never asserted: attackers, server and workers share this machine's cores).
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/metrics_page.h"
#include "tests/fault/floods/attacks.h"
#include "tests/fault/floods/steady_streams.h"
#include "tests/fault/own_flags.h"
#include "tests/fault/process_usage.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

int g_seconds = 1, g_streams = 8;  // set once, by main
std::vector<std::string> g_flags;  // likewise

constexpr int64_t kMostMegabytes = 200;     // of growth
constexpr int64_t kEnoughMegabytes = 1500;  // at which a flood ends, so that this machine outlives it
constexpr absl::Duration kPatience = absl::Seconds(60);
// From SIGTERM to the end: streams have ended before, so that there is nothing to wait for but calls and last bytes.
constexpr absl::Duration kMostToEnd = absl::Seconds(10);

struct FloodRow {
  std::string name;
  Gaps before, during;
  int64_t megabytes_before = 0, megabytes_peak = 0, megabytes_after = 0;
  int64_t bytes = 0, calls = 0, connections = 0, ended = 0;
  double own_cpu_seconds = 0, server_cpu_seconds = 0;
  double recovery_seconds = 0, end_seconds = -1;
  int64_t fenced = 0, refused = 0;
};
std::vector<FloodRow> g_rows;

int64_t Megabytes(pid_t pid) { return UsageOf(pid).rss_kb / 1024; }

// Processor seconds that a process has used.
double CpuSeconds(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(in, text);
  const std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 1), ' ');
  double ticks = 0, part = 0;
  for (const size_t at : {size_t{12}, size_t{13}}) {
    if (at < fields.size() && absl::SimpleAtod(fields[at], &part)) ticks += part;
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// A flood that goes on until it is destroyed.
class RunningFlood {
 public:
  RunningFlood(const FloodKind& flood, const std::string& address) {
    scope_.address = address;
    for (int i = 0; i < flood.threads; ++i) {
      threads_.emplace_back([this, &flood, i] {
        flood.attack(&scope_, i);
        rusage used = {};
        getrusage(RUSAGE_THREAD, &used);
        const auto micros = [](const timeval& time) { return time.tv_sec * 1000000 + time.tv_usec; };
        cpu_micros_ += micros(used.ru_utime) + micros(used.ru_stime);
      });
    }
  }
  ~RunningFlood() { Stop(); }
  void Stop() {
    scope_.over = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  const AttackScope& scope() const { return scope_; }
  double cpu_seconds() const { return static_cast<double>(cpu_micros_) / 1e6; }

 private:
  AttackScope scope_;
  std::atomic<int64_t> cpu_micros_{0};
  std::vector<std::thread> threads_;
};

class FloodTest : public testing::TestWithParam<FloodKind> {
 protected:
  void Start() {
    // The attackers' address is not this process's, so its share of the places is that of one client elsewhere.
    std::ofstream(dir_.path() + "/token") << "a token of more than sixteen bytes";
    ASSERT_EQ(chmod((dir_.path() + "/token").c_str(), 0600), 0);
    std::vector<std::string> flags = {"--threads=1", "--max_streams_per_client=256",
                                      "--join_token_file=" + dir_.path() + "/token"};
    flags.insert(flags.end(), g_flags.begin(), g_flags.end());
    server_ = TestServer::Start({.model = kDemoModel, .workers = 2, .flags = flags});
    ASSERT_NE(server_, nullptr);
    requests_ = SteadyStreams::Requests(g_streams);
    wanted_ = GenerateAll(server_->client(), requests_);
    for (const StreamSeen& seen : wanted_) ASSERT_TRUE(seen.ok()) << seen.end << seen.fault;
    pids_ = server_->WorkerPids();
    epoch_ = server_->client().GetLoad()->group_epoch();
    streams_ = std::make_unique<SteadyStreams>(*server_, requests_, wanted_, /*half_http=*/GetParam().at_http);
  }
  std::string Target() const {
    if (GetParam().at_http) return server_->http_address();
    return GetParam().at_workers ? server_->worker_address() : server_->address();
  }

  void Attack(FloodRow* row) {
    const pid_t pid = server_->process().pid();
    absl::Time from = absl::Now();
    absl::SleepFor(std::max(absl::Seconds(2), absl::Seconds(g_seconds) / 3));
    row->before = streams_->GapsSince(from);
    row->megabytes_before = Megabytes(pid);
    RunningFlood flood(GetParam(), Target());
    const double cpu = CpuSeconds(pid);
    for (from = absl::Now(); absl::Now() - from < absl::Seconds(g_seconds);) {
      absl::SleepFor(absl::Milliseconds(20));
      if (row->megabytes_peak > row->megabytes_before + kEnoughMegabytes) break;
      row->megabytes_peak = std::max(row->megabytes_peak, Megabytes(pid));
    }
    row->during = streams_->GapsSince(from);
    row->server_cpu_seconds = CpuSeconds(pid) - cpu;
    flood.Stop();
    row->own_cpu_seconds = flood.cpu_seconds();
    row->bytes = flood.scope().bytes;
    row->calls = flood.scope().calls;
    row->connections = flood.scope().connections;
    row->ended = flood.scope().ended;
    EXPECT_GT(row->connections, 0) << "nothing was attacked";
  }

  // Everything that must hold after a flood.
  void Look(FloodRow* row) {
    const absl::Time begin = absl::Now();
    EXPECT_TRUE(streams_->AwaitAll(begin, kPatience)) << "a stream does not go on";
    const auto beside = server_->Connect(kPatience);
    EXPECT_TRUE(WaitUntil([&] { return Generate(*beside, TextRequest("The", 4)).ok(); }, kPatience))
        << "a new client is not answered";
    row->recovery_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    row->megabytes_peak = std::max(row->megabytes_peak, Megabytes(server_->process().pid()));
    absl::SleepFor(absl::Seconds(1));
    row->megabytes_after = Megabytes(server_->process().pid());
    streams_->Stop();
    for (const auto& [fault, count] : streams_->faults()) ADD_FAILURE() << count << " x " << fault;
    EXPECT_GE(streams_->compared(), g_streams) << "not every stream's tokens were compared";
    row->refused = streams_->refused();
    std::string page;
    EXPECT_TRUE(WaitUntil([&] { return !(page = Scrape(server_->metrics_address())).empty(); }, kPatience));
    row->fenced = static_cast<int64_t>(Value(page, "switchyard_workers_fenced_total") +
                                       Value(page, "switchyard_groups_lost_total"));
    EXPECT_EQ(row->fenced, 0) << "workers fenced and groups lost";
    const auto load = server_->client().GetLoad();
    ASSERT_TRUE(load.ok()) << load.status();
    EXPECT_EQ(load->group_epoch(), epoch_);
    EXPECT_EQ(server_->WorkerPids(), pids_);
    EXPECT_LE(row->megabytes_peak - row->megabytes_before, kMostMegabytes) << "MB of growth";
  }

  // SIGTERM in the midst of the same flood.
  void End(FloodRow* row) {
    RunningFlood flood(GetParam(), Target());
    absl::SleepFor(std::min(absl::Seconds(1), absl::Seconds(g_seconds) / 2));
    const absl::Time begin = absl::Now();
    server_->process().Signal(SIGTERM);
    const std::optional<int> code = server_->process().Wait(3 * kMostToEnd);
    row->end_seconds = code ? absl::ToDoubleSeconds(absl::Now() - begin) : -1;
    EXPECT_EQ(code.value_or(-1), 0) << "SIGTERM has not ended the server";
    EXPECT_LE(absl::Now() - begin, kMostToEnd);
  }

  std::vector<v1::GenerateRequest> requests_;
  std::vector<StreamSeen> wanted_;
  std::vector<pid_t> pids_;
  int64_t epoch_ = 0;
  const model::TempDir dir_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<SteadyStreams> streams_;  // last: its threads use what is above
};

void Print(const FloodRow& row) {
  const auto ms = [](absl::Duration time) { return absl::ToDoubleMilliseconds(time); };
  std::cout
      << absl::StreamFormat(
             "%-18s %8.1f %8d %6d/%-6d  %5.1f %6.1f %6.1f   %5.1f %6.1f %7.1f %-6s  %5d %5d %5d  %4.1f %4.1f  %5.1f "
             "%3d %5.1f %6d",
             row.name, static_cast<double>(row.bytes) / 1e6, row.calls, row.ended, row.connections,
             ms(row.before.median), ms(row.before.p99), ms(row.before.longest), ms(row.during.median),
             ms(row.during.p99), ms(row.during.longest), row.during.p99 <= 2 * row.before.p99 ? "held" : "MISSED",
             row.megabytes_before, row.megabytes_peak, row.megabytes_after, row.own_cpu_seconds, row.server_cpu_seconds,
             row.recovery_seconds, row.fenced, row.end_seconds, row.refused)
      << std::endl;
}
constexpr char kHeading[] =
    "flood              MB sent    calls  ended/made    gap before, ms         gap during, ms                 RSS, MB "
    "          cpu, s      recov fen  end    new\n"
    "                                                     p50    p99    max     p50    p99     max <= 2x   before  "
    "peak "
    "after  own  srv      s ced    s refused\n";

TEST_P(FloodTest, StreamsGoOn) {
  Start();
  if (HasFatalFailure()) return;
  FloodRow row;
  row.name = GetParam().name;
  Attack(&row);
  Look(&row);
  if (!HasFatalFailure()) End(&row);
  std::cout << kHeading;
  Print(row);
  g_rows.push_back(row);
}

INSTANTIATE_TEST_SUITE_P(Http, FloodTest, testing::ValuesIn(HttpFloods()),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(All, FloodTest, testing::ValuesIn(Floods()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using namespace switchyard;  // NOLINT
  const auto further = [](absl::string_view value) {
    g_flags = absl::StrSplit(value, ',');
    return true;
  };
  const auto only = [](absl::string_view value) {
    const std::vector<std::string> names = absl::StrSplit(value, ',');
    testing::GTEST_FLAG(filter) = absl::StrJoin(
        names, ":", [](std::string* out, const std::string& name) { absl::StrAppend(out, "*/FloodTest.*/", name); });
    return true;
  };
  const int failed = RunWithFlags(argc, argv,
                                  {{"--seconds=", NumberFrom(1, &g_seconds)},
                                   {"--streams=", NumberFrom(1, &g_streams)},
                                   {"--flags=", further},
                                   {"--only=", only}});
  std::cout << "\n" << kHeading;
  for (const FloodRow& row : g_rows) Print(row);
  return failed;
}
