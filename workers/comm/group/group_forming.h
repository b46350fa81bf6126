// What forming a group over the network is, whatever carries its messages: options, checks, and who is there.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "workers/comm/core/op_key.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::comm {

struct GroupOptions {
  int rank = 0;
  int world = 1;
  int64_t epoch = 1;
  std::string token;    // the group's secret, the same on all ranks
  std::string address;  // "127.0.0.1": an IPv4 or IPv6 address of this host that the peers reach
  absl::Time deadline;  // by when the group must have formed
};

// InvalidArgument: what and why.  A world of one needs neither deadline nor address.
absl::Status CheckGroupOptions(const GroupOptions& options);
// OK if the text is one address that may carry a group: loopback or private, not a wildcard, not a name.
absl::Status CheckGroupAddress(const std::string& address);

GroupId IdOfGroup(const GroupOptions& options);
// Before every key of the group's: another epoch or token never meets it.
std::string GroupPrefix(const GroupOptions& options);

// Every rank says who it is, once; so a double, or a rank of another world, is known before anything is connected.
// Blocks until all are there.  Errors: AlreadyExists (duplicate rank), DeadlineExceeded (names who is missing),
// FailedPrecondition (another world), the store's.
absl::Status CallTheRoll(const GroupOptions& options, RendezvousStore* store);

}  // namespace switchyard::comm
