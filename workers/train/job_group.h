// The communicator of one attempt at a time, which may be ended from any thread, also while it forms.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/training/comm_spec.h"
#include "workers/comm/communicator.h"
#include "workers/comm/group_forming.h"
#include "workers/comm/rendezvous_store.h"
#include "workers/comm/socket_traffic.h"

namespace switchyard {

// Thread-safe; Form and Leave belong to one thread.
class JobGroup {
 public:
  // traffic: borrowed; counts what groups of mode preempt send.
  explicit JobGroup(SocketTraffic* traffic) : traffic_(traffic) {}

  // Blocks until the group stands: over Gloo, or in mode preempt over connections on which all-to-alls overtake sums
  // (socket_communicator.h).  The communicator is this's until Leave.  Errors: FormGlooGroup's; Aborted for an epoch
  // that was aborted before or meanwhile.
  absl::StatusOr<Communicator*> Form(const GroupOptions& options, CommMode mode, RendezvousStore* store);
  void Leave();
  // Ends that epoch and those before, now or when they form.
  void Abort(int64_t epoch, const std::string& reason);
  // All epochs so far are forgotten: a new link, perhaps to a server that counts anew.
  void ForgetEpochs();

 private:
  SocketTraffic* const traffic_;
  absl::Mutex mu_;
  std::unique_ptr<Communicator> comm_ ABSL_GUARDED_BY(mu_);
  RendezvousStore* forming_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;          // that forms or stands
  int64_t aborted_epoch_ ABSL_GUARDED_BY(mu_) = 0;  // epochs up to here are over
};

}  // namespace switchyard
