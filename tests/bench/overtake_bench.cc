// One rank of overtake.py: how long an all-to-all takes while a long sum is under way, over connections that
// both share by turns and over connections on which it goes first, alternately.
//
//   overtake_bench --store=DIR --rank=N --world=N --address=IP [--rounds=N] [--exchanges=N] [--rows_kib=N]
//   [--sum_mib=N]
//                  [--frame_kib=N] [--send_buffer_kib=N]
//
// In each round a sum of sum_mib on all ranks, and beside it exchanges of rows_kib (of a rank to all others together),
// each begun by all ranks at once.  Prints a line of JSON for each: transport, ms, and whether the sum was still under
// way; and one for each sum.
#include <atomic>
#include <cstdint>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/bench_ranks.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/tcp/socket_communicator.h"

namespace switchyard {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);

struct Flags {
  bench::RankFlags ranks = {};
  int64_t rounds = 5, exchanges = 8, rows_kib = 1024, sum_mib = 64, frame_kib = 64, send_buffer_kib = 64;
};

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (bench::TakeRankFlag(arg, &flags.ranks)) continue;
    const bool ok = absl::ConsumePrefix(&arg, "--rounds=")            ? absl::SimpleAtoi(arg, &flags.rounds)
                    : absl::ConsumePrefix(&arg, "--exchanges=")       ? absl::SimpleAtoi(arg, &flags.exchanges)
                    : absl::ConsumePrefix(&arg, "--rows_kib=")        ? absl::SimpleAtoi(arg, &flags.rows_kib)
                    : absl::ConsumePrefix(&arg, "--sum_mib=")         ? absl::SimpleAtoi(arg, &flags.sum_mib)
                    : absl::ConsumePrefix(&arg, "--frame_kib=")       ? absl::SimpleAtoi(arg, &flags.frame_kib)
                    : absl::ConsumePrefix(&arg, "--send_buffer_kib=") ? absl::SimpleAtoi(arg, &flags.send_buffer_kib)
                                                                      : false;
    if (!ok) return absl::InvalidArgumentError(absl::StrCat("cannot take ", argv[i]));
  }
  if (flags.ranks.world < 2) return absl::InvalidArgumentError("--world: at least 2");
  return flags;
}

absl::Status Meet(comm::Communicator* comm) {
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> together,
                   comm->Barrier({.comm_class = comm::CommClass::kControl, .deadline = MonotonicNow() + kPatience}));
  return together->Wait();
}

class Rank {
 public:
  explicit Rank(const Flags& flags) : flags_(flags), values_(static_cast<size_t>(flags.sum_mib << 18), 1) {}

  // under_sum: is set when the sum is over, or null.
  absl::Status Exchange(comm::Communicator* comm, const std::string& name, const std::atomic<bool>* sum_over) {
    std::vector<comm::Message> out(static_cast<size_t>(comm->world()));
    for (comm::Message& message : out) message = comm->NewMessage((flags_.rows_kib << 10) / (comm->world() - 1));
    RETURN_IF_ERROR(Meet(comm));
    const absl::Time begin = absl::Now();
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> work,
                     comm->AllToAllV({.deadline = begin + kPatience}, std::move(out)));
    RETURN_IF_ERROR(work->Wait());
    const double ms = absl::ToDoubleMilliseconds(absl::Now() - begin);
    const char* const beside = sum_over == nullptr ? "nothing" : *sum_over ? "the end of a sum" : "a sum";
    std::cout << absl::StrCat("{\"transport\": \"", name, "\", \"all_to_all_ms\": ", ms, ", \"beside\": \"", beside,
                              "\"}")
              << std::endl;
    return absl::OkStatus();
  }

  absl::Status Round(comm::Communicator* comm, const std::string& name) {
    RETURN_IF_ERROR(Exchange(comm, name, nullptr));
    RETURN_IF_ERROR(Meet(comm));
    const absl::Time begin = absl::Now();
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> sum,
                     comm->AllReduceSum({.comm_class = comm::CommClass::kAllReduce, .deadline = begin + kPatience},
                                        TensorView(values_.data(), DType::kF32, {flags_.sum_mib << 18})));
    std::atomic<bool> over = false;
    auto summing = std::async(std::launch::async, [&] {
      absl::Status status = sum->Wait();
      over = true;
      return std::make_pair(std::move(status), absl::Now());
    });
    absl::Status status;
    for (int64_t i = 0; i < flags_.exchanges && status.ok(); ++i) {
      absl::SleepFor(absl::Milliseconds(20));
      status = Exchange(comm, name, &over);
    }
    if (!status.ok()) comm->Abort(status.message());
    const auto [summed, end] = summing.get();
    RETURN_IF_ERROR(summed);
    std::cout << absl::StrCat("{\"transport\": \"", name, "\", \"sum_ms\": ", absl::ToDoubleMilliseconds(end - begin),
                              "}")
              << std::endl;
    return status;
  }

 private:
  const Flags& flags_;
  std::vector<float> values_;
};

absl::Status Main(int argc, char** argv) {
  ASSIGN_OR_RETURN(const Flags flags, ParseFlags(argc, argv));
  comm::SocketTraffic traffic;
  comm::SocketGroupOptions options = {
      .framing = {.bytes = flags.frame_kib << 10, .overtakes = true}, .socket = {}, .traffic = &traffic};
  options.socket.send_buffer_bytes = static_cast<int>(flags.send_buffer_kib << 10);
  ASSIGN_OR_RETURN(const bench::BenchGroups groups, bench::FormBenchGroups(flags.ranks, options, kPatience));
  Rank rank(flags);
  for (int64_t round = 0; round < flags.rounds; ++round) {
    RETURN_IF_ERROR(rank.Round(groups.turns.get(), "turns"));
    RETURN_IF_ERROR(rank.Round(groups.overtaking.get(), "overtaking"));
  }
  std::cout << absl::StrCat("{\"transport\": \"overtaking\", \"overtaken\": ", traffic.overtaken.load(), "}")
            << std::endl;
  // Nobody leaves while another is still at it.
  RETURN_IF_ERROR(Meet(groups.turns.get()));
  return Meet(groups.overtaking.get());
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  const absl::Status status = switchyard::Main(argc, argv);
  if (!status.ok()) std::cerr << "overtake_bench: " << status.message() << "\n";
  return status.ok() ? 0 : 2;
}
