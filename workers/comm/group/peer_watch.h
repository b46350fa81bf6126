// PeerWatch: what every rank of a group has launched and finished on its device, known to all, and whether it is well.
//
// For groups whose collectives run on devices, where nobody on the host waits for a peer: a thread of its own gathers
// every rank's report over a small host group of its own, over and over; rank 0 sets the pace.  So within two periods
// (20 ms at first) all ranks know of a failed one and why, a dead one is known when its connections close, a frozen one
// when it has not answered for `timeout`; and who is late can be said without asking a rank that may not answer.
//
// Thread-safe.  It reports and tells; it ends nobody's collectives: that is for the one who is told.
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

// What a rank says of itself.  Launches are those on the device, over all classes in their one order.
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

  // This rank has failed: the peers are told why.  Returns at once; again: nothing.
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
