// PeerWatch publishes to all ranks of a group what each has launched and finished on its device, and whether it failed.
//
// It serves groups whose collectives run on devices, where no host thread waits for a peer.  A thread of its own
// gathers every rank's report over a host group of its own, again and again; rank 0 sets the pace.  So all ranks know
// within two periods (20 ms at first) that a rank has failed and why, when its connections close that it is dead, and
// after `timeout` without an answer that it is frozen; and a rank that may not answer need not be asked who is late.
//
// Thread-safe.  It only reports; the owner, which on_end calls, ends collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

// One rank's report.  Launches are those on the device, over all classes in their one order.
struct PeerReport {
  int64_t launched = 0;
  int64_t completed = 0;
  OpKey last;     // what was launched last; means something where launched > 0
  OpKey pending;  // the oldest that is not done; means something where completed < launched
  // [R] bytes to and from each rank of an all-to-all that is pending; empty for other ops.
  std::vector<int64_t> send_bytes = {}, recv_bytes = {};
};

struct PeerWatchOptions {
  absl::Duration period = absl::Milliseconds(10);
  absl::Duration timeout = absl::Seconds(5);  // a rank that has not answered for so long is gone
};

class PeerWatch {
 public:
  // Takes `comm`, a host group of the same ranks that nobody else uses.  Both functions are
  // called on the watch's thread, between Start and the end of Stop: `report` once a round; `on_end` at most once, when
  // a peer has failed, is gone or frozen (Unavailable; names it), never after Fail or Leave.
  PeerWatch(std::unique_ptr<Communicator> comm, const PeerWatchOptions& options, std::function<PeerReport()> report,
            std::function<void(const absl::Status&)> on_end);
  ~PeerWatch();  // Stop
  void Start();
  // Leaves, unless Fail was called, and joins the thread; again: nothing.
  void Stop();

  // This rank has failed: publishes why.  Returns at once; idempotent.
  void Fail(absl::string_view why);
  // This rank does not need the group any more: the peers are informed.  Blocks until they are, half a second at most.
  void Leave();

  // The ranks' latest reports, this rank's own among them; before the first round they are empty.
  std::vector<PeerReport> Latest() const;
  // Blocks until all reports are younger than this call.  False: not by the deadline, or the watch has ended.
  bool AwaitFresh(absl::Time deadline) const;
  // The lowest rank that has left, or -1.
  int left() const;

 private:
  enum class Ending : uint8_t { kNone, kLeft, kFailed };

  void Run();
  // One round.  False: it was the last.
  bool Gather();
  bool Read(const std::vector<Message>& received);

  const std::unique_ptr<Communicator> comm_;
  const PeerWatchOptions options_;
  const std::function<PeerReport()> report_;
  const std::function<void(const absl::Status&)> on_end_;

  mutable absl::Mutex mu_;
  Ending ending_ ABSL_GUARDED_BY(mu_) = Ending::kNone;  // of this rank
  std::string why_ ABSL_GUARDED_BY(mu_);
  std::vector<PeerReport> latest_ ABSL_GUARDED_BY(mu_);  // [R]
  int64_t rounds_ ABSL_GUARDED_BY(mu_) = 0;              // gathered
  int left_ ABSL_GUARDED_BY(mu_) = -1;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace switchyard::comm
