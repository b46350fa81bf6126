#include "tests/bench/bench_ranks.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::bench {

bool TakeRankFlag(absl::string_view arg, RankFlags* flags) {
  if (absl::ConsumePrefix(&arg, "--rank=")) return absl::SimpleAtoi(arg, &flags->rank);
  if (absl::ConsumePrefix(&arg, "--world=")) return absl::SimpleAtoi(arg, &flags->world);
  const bool is_store = absl::ConsumePrefix(&arg, "--store=");
  if (!is_store && !absl::ConsumePrefix(&arg, "--address=")) return false;
  (is_store ? flags->store : flags->address) = std::string(arg);
  return true;
}

absl::StatusOr<BenchGroups> FormBenchGroups(const RankFlags& flags, comm::SocketGroupOptions overtaking,
                                            absl::Duration patience) {
  test::DirectoryStore store(flags.store);
  comm::PrefixStore turns_store(&store, "turns/"), overtaking_store(&store, "overtaking/");
  overtaking.group = {.rank = flags.rank,
                      .world = flags.world,
                      .token = "bench",
                      .address = flags.address,
                      .deadline = MonotonicNow() + patience};
  BenchGroups groups;
  ASSIGN_OR_RETURN(
      groups.turns,
      comm::FormSocketGroup({.group = overtaking.group, .framing = comm::kSharingFrames, .socket = {}}, &turns_store));
  ASSIGN_OR_RETURN(groups.overtaking, comm::FormSocketGroup(overtaking, &overtaking_store));
  return groups;
}

}  // namespace switchyard::bench
