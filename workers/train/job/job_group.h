// The communicator of one attempt at a time.  Any thread may end it, also while it forms.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/epoch_group.h"
#include "workers/comm/group/group_forming.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/comm/tcp/socket_traffic.h"

namespace switchyard::train {

// Thread-safe; Form and Leave belong to one thread.
class JobGroup {
 public:
  // traffic: borrowed; counts what groups send.
  explicit JobGroup(comm::SocketTraffic* traffic) : traffic_(traffic) {}

  // Blocks until the group has formed, on whose connections all-to-alls overtake sums (socket_communicator.h).  Owns
  // the communicator until Leave.  Errors: FormSocketGroup's; Aborted for an aborted epoch.
  absl::StatusOr<comm::Communicator*> Form(const comm::GroupOptions& options, comm::RendezvousStore* store);
  void Leave() { group_.Leave(); }
  void Abort(int64_t epoch, const std::string& reason) { group_.Abort(epoch, reason); }

 private:
  comm::SocketTraffic* const traffic_;
  comm::EpochGroup group_;
};

}  // namespace switchyard::train
