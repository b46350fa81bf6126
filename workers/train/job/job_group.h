// The communicator of one attempt at a time, which may be ended from any thread, also while it forms.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/jobs/comm_spec.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/epoch_group.h"
#include "workers/comm/group/group_forming.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/comm/tcp/socket_mesh.h"
#include "workers/comm/tcp/socket_traffic.h"

namespace switchyard {

// Thread-safe; Form and Leave belong to one thread.
class JobGroup {
 public:
  // Of groups of mode preempt.  traffic: borrowed; counts what they send.
  explicit JobGroup(SocketTraffic* traffic, const SocketSettings& settings = {})
      : traffic_(traffic), settings_(settings) {}

  // Blocks until the group stands: over Gloo, or in mode preempt over connections on which all-to-alls overtake sums
  // (socket_communicator.h).  The communicator is this's until Leave.  Errors: FormGlooGroup's; Aborted for an epoch
  // that was aborted before or meanwhile.
  absl::StatusOr<Communicator*> Form(const GroupOptions& options, CommMode mode, RendezvousStore* store);
  void Leave() { group_.Leave(); }
  // As EpochGroup's.
  void Abort(int64_t epoch, const std::string& reason) { group_.Abort(epoch, reason); }
  void ForgetEpochs() { group_.ForgetEpochs(); }

 private:
  SocketTraffic* const traffic_;
  const SocketSettings settings_;
  EpochGroup group_;
};

}  // namespace switchyard
