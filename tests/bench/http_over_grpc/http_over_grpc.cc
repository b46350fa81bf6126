// The same load over gRPC and over HTTP (server-sent events), in turns, against one real server with a local worker on
// the demo model, clients on the same cores.
//
//   http_over_grpc [--pairs=9] [--seconds=1.5] [--streams=1,8,32] [--server_flags=FLAG,FLAG…] [--quick]
//
// Targets, written down before the first run, at 1, 8 and 32 concurrent streams, for /v1/completions on kept and on new
// connections and for /v1/chat/completions on kept ones: HTTP has at least 0.97 of gRPC's tokens a second, and its
// median first token comes at most 1 ms later.  /v1/completions is judged against calls on a connection of each
// stream's own, as HTTP's are, and against calls that share one connection, as those of one client process do.
//
// Rules: a round runs every load once, in an order that is drawn anew; all have the same prompts, lengths (max_tokens
// with ignore_eos) and sampling (greedy).  A stream sends its next request when an answer has ended; answers differ in
// length, so that requests come one by one.  A figure is the median over the rounds of the ratio (of rates, of the
// server's processor time a token) or of the difference (of times) within a round.  Before, a load of each kind is run
// whose texts must be equal.  gRPC's load runs twice in each round, and the second beside the first is the noise: where
// the standard error of its median is above half of a limit, a miss or a hit of that limit means nothing, and the table
// says so.  Clients: load.h.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/bench/http_over_grpc/load.h"
#include "tests/bench/measured_on.h"
#include "tests/e2e/harness.h"

namespace switchyard::bench {
namespace {

constexpr double kLeastRate = 0.97, kMostLater = 1.0;  // of tokens a second; ms of the first token

enum Kind { kGrpc, kGrpcAgain, kGrpcShared, kGrpcChat, kHttp, kHttpNew, kHttpChat, kNumKinds };
constexpr LoadKind kKinds[kNumKinds] = {
    {"gRPC", LoadProtocol::kGrpc, LoadApi::kCompletions, LoadConnections::kKept},
    {"gRPC again", LoadProtocol::kGrpc, LoadApi::kCompletions, LoadConnections::kKept},
    {"gRPC, one connection", LoadProtocol::kGrpc, LoadApi::kCompletions, LoadConnections::kShared},
    {"gRPC, chat", LoadProtocol::kGrpc, LoadApi::kChat, LoadConnections::kKept},
    {"HTTP", LoadProtocol::kHttp, LoadApi::kCompletions, LoadConnections::kKept},
    {"HTTP, new connections", LoadProtocol::kHttp, LoadApi::kCompletions, LoadConnections::kNew},
    {"HTTP, chat", LoadProtocol::kHttp, LoadApi::kChat, LoadConnections::kKept},
};
struct Comparison {
  Kind kind, base;
};
constexpr Comparison kComparisons[] = {
    {kGrpcAgain, kGrpc}, {kHttp, kGrpc}, {kHttp, kGrpcShared}, {kHttpNew, kGrpc}, {kHttpChat, kGrpcChat}};

struct Flags {
  int pairs = 9;
  double seconds = 1.5;  // of a load
  std::vector<int> streams = {1, 8, 32};
  std::vector<std::string> server_flags;
};

struct Measured {
  double rate = 0, server_us = 0, client_us = 0;  // the two: of processor time a token
  double first_p50 = 0, first_p99 = 0, gap_p50 = 0, gap_p99 = 0;
};

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}
double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}
// Of the median, from the quartiles as if values were normal: they are few, and some are disturbed.
double StandardError(const std::vector<double>& values) {
  const double spread = (Quantile(values, 0.75) - Quantile(values, 0.25)) / 1.349;
  return 1.2533 * spread / std::sqrt(static_cast<double>(values.size()));
}

// Processor seconds of another process.
double CpuSecondsOf(pid_t pid) {
  clockid_t clock = 0;
  timespec used = {};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

[[noreturn]] void Die(const std::string& why) {
  std::cerr << "http_over_grpc: " << why << "\n";
  _exit(1);  // the server dies with this process
}

class Bench {
 public:
  Bench(TestServer* server, const Flags& flags) : server_(*server), flags_(flags) {}

  int Run() {
    const double load = LoadAverage();
    for (const int streams : flags_.streams) RunSize(streams);
    std::cout << (missed_ == 0 ? "all targets are held" : absl::StrCat(missed_, " targets are missed")) << "\n"
              << nlohmann::json({{"benchmark", "http_over_grpc"},
                                 {"missed", missed_},
                                 {"rows", rows_},
                                 {"load", {load, LoadAverage()}},
                                 {"commit", Commit()},
                                 {"processor", Processor()}})
                     .dump()
              << "\n";
    return missed_ == 0 ? 0 : 1;
  }

 private:
  LoadResult RunLoad(Kind kind, const LoadSize& size, bool keeps_texts) {
    const LoadKind& what = kKinds[kind];
    auto result = what.protocol == LoadProtocol::kGrpc ? RunGrpcLoad(server_.address(), what, size, keeps_texts)
                                                       : RunHttpLoad(server_.http_address(), what, size, keeps_texts);
    if (!result.ok()) Die(absl::StrCat(what.name, ": ", result.status().ToString(), "\n", server_.process().Output()));
    return *std::move(result);
  }

  Measured Measure(Kind kind, const LoadSize& size) {
    const double cpu = CpuSecondsOf(server_.process().pid());
    const LoadResult result = RunLoad(kind, size, /*keeps_texts=*/false);
    const auto tokens = static_cast<double>(result.tokens);
    return {.rate = tokens / result.seconds,
            .server_us = (CpuSecondsOf(server_.process().pid()) - cpu) * 1e6 / tokens,
            .client_us = result.client_cpu_seconds * 1e6 / tokens,
            .first_p50 = Median(result.first_ms),
            .first_p99 = Quantile(result.first_ms, 0.99),
            .gap_p50 = Median(result.gap_ms),
            .gap_p99 = Quantile(result.gap_ms, 0.99)};
  }

  // Warms everything up; the answers must be equal.  Returns the size of the loads that are measured.
  LoadSize Check(int streams) {
    LoadSize size = {.streams = streams};
    std::vector<std::string> texts[kNumKinds];
    double rate = 0;
    for (int kind = 0; kind < kNumKinds; ++kind) {
      LoadResult result = RunLoad(static_cast<Kind>(kind), size, /*keeps_texts=*/true);
      texts[kind] = std::move(result.texts);
      rate = static_cast<double>(result.tokens) / result.seconds;
    }
    for (const Comparison& one : kComparisons) {
      if (texts[one.kind] != texts[one.base])
        Die(absl::StrCat(kKinds[one.kind].name, " has other texts than ", kKinds[one.base].name));
    }
    size.requests = std::max(
        1, static_cast<int>(std::lround(flags_.seconds * rate / (static_cast<double>(streams) * size.tokens))));
    return size;
  }

  void RunSize(int streams) {
    const LoadSize size = Check(streams);
    std::vector<Measured> measured[kNumKinds];
    std::vector<int> order(kNumKinds);
    for (int kind = 0; kind < kNumKinds; ++kind) order[static_cast<size_t>(kind)] = kind;
    for (int pair = 0; pair < flags_.pairs; ++pair) {
      std::shuffle(order.begin(), order.end(), random_);
      for (const int kind : order) measured[kind].push_back(Measure(static_cast<Kind>(kind), size));
    }
    std::printf("\n%d streams, %d rounds of %d requests each\n", streams, flags_.pairs, size.requests);
    std::printf("%-24s %9s %15s %15s %9s %9s\n", "", "tokens/s", "first ms p50 99", "gap ms p50 99", "server us",
                "client us");
    for (int kind = 0; kind < kNumKinds; ++kind) PrintKind(streams, static_cast<Kind>(kind), measured[kind]);
    std::printf("%-46s %22s %10s %22s %11s\n", "in pairs", "rate (quartiles)", "std error", "first ms (quartiles)",
                "server CPU");
    double rate_noise = 0, first_noise = 0;
    for (const Comparison& one : kComparisons)
      Compare(streams, one, measured[one.kind], measured[one.base], &rate_noise, &first_noise);
    std::fflush(stdout);
  }

  static std::vector<double> All(const std::vector<Measured>& measured, double Measured::*figure) {
    std::vector<double> values;
    for (const Measured& one : measured) values.push_back(one.*figure);
    return values;
  }

  void PrintKind(int streams, Kind kind, const std::vector<Measured>& measured) {
    const auto median = [&](double Measured::*figure) { return Median(All(measured, figure)); };
    std::printf("%-24s %9.0f %7.2f %7.2f %7.2f %7.2f %9.1f %9.1f\n", kKinds[kind].name, median(&Measured::rate),
                median(&Measured::first_p50), median(&Measured::first_p99), median(&Measured::gap_p50),
                median(&Measured::gap_p99), median(&Measured::server_us), median(&Measured::client_us));
    rows_.push_back({{"streams", streams},
                     {"load", kKinds[kind].name},
                     {"tokens_per_second", All(measured, &Measured::rate)},
                     {"first_ms", All(measured, &Measured::first_p50)},
                     {"server_us_per_token", All(measured, &Measured::server_us)}});
  }

  void Compare(int streams, const Comparison& what, const std::vector<Measured>& ours,
               const std::vector<Measured>& base, double* rate_noise, double* first_noise) {
    std::vector<double> rates, firsts, cpus;
    for (size_t i = 0; i < ours.size(); ++i) {
      rates.push_back(ours[i].rate / base[i].rate);
      firsts.push_back(ours[i].first_p50 - base[i].first_p50);
      cpus.push_back(ours[i].server_us / base[i].server_us);
    }
    std::string verdict = "the noise";
    if (what.kind == kGrpcAgain) {
      *rate_noise = StandardError(rates);
      *first_noise = StandardError(firsts);
    } else {
      const bool rate_held = Median(rates) >= kLeastRate, first_held = Median(firsts) <= kMostLater;
      missed_ += (rate_held ? 0 : 1) + (first_held ? 0 : 1);
      verdict = absl::StrCat(rate_held ? "held" : "MISSED", *rate_noise > (1 - kLeastRate) / 2 ? " (noisy)" : "", ", ",
                             first_held ? "held" : "MISSED", *first_noise > kMostLater / 2 ? " (noisy)" : "");
    }
    std::printf("%-46s %6.3f (%.3f to %.3f) %10.4f %+7.2f (%+.2f to %+.2f) %7.2f   %s\n",
                absl::StrCat(kKinds[what.kind].name, " beside ", kKinds[what.base].name).c_str(), Median(rates),
                Quantile(rates, 0.25), Quantile(rates, 0.75), StandardError(rates), Median(firsts),
                Quantile(firsts, 0.25), Quantile(firsts, 0.75), Median(cpus), verdict.c_str());
    rows_.push_back({{"streams", streams},
                     {"load", kKinds[what.kind].name},
                     {"beside", kKinds[what.base].name},
                     {"rate", Median(rates)},
                     {"first_ms_later", Median(firsts)},
                     {"server_cpu", Median(cpus)}});
  }

  TestServer& server_;
  const Flags flags_;
  std::mt19937 random_{26};
  int missed_ = 0;
  nlohmann::json rows_ = nlohmann::json::array();
};

bool Parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    bool known = arg == "--quick";
    if (known) {
      flags->pairs = 2;
      flags->seconds = 0.3;
    } else if (absl::ConsumePrefix(&arg, "--pairs=")) {
      known = absl::SimpleAtoi(arg, &flags->pairs) && flags->pairs >= 1;
    } else if (absl::ConsumePrefix(&arg, "--seconds=")) {
      known = absl::SimpleAtod(arg, &flags->seconds) && flags->seconds > 0;
    } else if (absl::ConsumePrefix(&arg, "--server_flags=")) {
      known = true;
      flags->server_flags = absl::StrSplit(arg, ',');
    } else if (absl::ConsumePrefix(&arg, "--streams=")) {
      known = true;
      flags->streams.clear();
      for (const absl::string_view number : absl::StrSplit(arg, ',')) {
        flags->streams.push_back(0);
        known = known && absl::SimpleAtoi(number, &flags->streams.back()) && flags->streams.back() >= 1;
      }
    }
    if (known) continue;
    std::cerr << "http_over_grpc: cannot take " << argv[i]
              << "; flags: --pairs=N --seconds=S --streams=N,N --server_flags=FLAG,FLAG --quick\n";
    return false;
  }
  return true;
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  using switchyard::bench::Bench;
  testing::InitGoogleTest(&argc, argv);
  switchyard::bench::Flags flags;
  if (!switchyard::bench::Parse(argc, argv, &flags)) return 2;
  const auto server = switchyard::TestServer::Start({.model = switchyard::kDemoModel, .flags = flags.server_flags});
  return server == nullptr ? 1 : Bench(server.get(), flags).Run();
}
