// The first part of forming a group over the network, for sockets and NCCL: options, their checks, and the roll call.
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
  std::string token;           // the group's secret, the same on all ranks; 128 bits that nobody can guess
  std::string address;         // "127.0.0.1": an IPv4 or IPv6 address of this host that the peers reach
  absl::Time deadline;         // by when the group must have formed
  bool encrypt_links = false;  // TLS on every connection; the same on all ranks
};

// InvalidArgument names the option and its value.  A world of one needs neither deadline nor address.
absl::Status CheckGroupOptions(const GroupOptions& options);
// OK if the text is one address that may carry a group: loopback, private or shared (100.64/10), not a wildcard, not a
// name.
absl::Status CheckGroupAddress(const std::string& address);

GroupId IdOfGroup(const GroupOptions& options);
// The prefix of the group's keys in the store: groups of another epoch or token have other keys.
std::string GroupPrefix(const GroupOptions& options);

// Publishes this rank and waits for the others, so that a duplicate, or a rank of another world, is found before
// anything is connected.  Blocks until all ranks are there.  Errors: AlreadyExists (duplicate rank), DeadlineExceeded
// (names the missing ranks), FailedPrecondition (another world), the store's.
absl::Status CallTheRoll(const GroupOptions& options, RendezvousStore* store);

}  // namespace switchyard::comm
