// How the ranks of a bench, a process each, find each other and form their groups.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/tcp/socket_communicator.h"

namespace switchyard::bench {

struct RankFlags {
  std::string store, address = "127.0.0.1";
  int rank = 0, world = 1;
};
// Whether the argument is one of --store=DIR, --address=IP, --rank=N, --world=N, and could be read.
bool TakeRankFlag(absl::string_view arg, RankFlags* flags);

// The same ranks twice: over connections that classes share by turns, and on which all-to-alls overtake sums.
struct BenchGroups {
  std::unique_ptr<comm::Communicator> turns, overtaking;
};
// overtaking: its group is filled in.  Blocks until all are there.  Errors: FormSocketGroup's.
absl::StatusOr<BenchGroups> FormBenchGroups(const RankFlags& flags, comm::SocketGroupOptions overtaking,
                                            absl::Duration patience);

}  // namespace switchyard::bench
