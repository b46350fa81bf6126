// PeerWatch publishes to all ranks of a group what each has launched and finished on its device, and whether it failed.
//
// It serves groups with collectives on devices, where no host thread waits for a peer.  A thread of its own gathers
// every rank's report over a host group of its own, again and again; rank 0 sets the interval.  So all ranks learn
// within two periods (20 ms at first) that a rank has failed and why; that it is dead, when its connections close; and
// that it is frozen, after `timeout` without an answer.  The reports name the late ranks, without a question to a rank
// that may not answer.
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

// One rank's report.  Launches are those on the device, over all classes in their one order; one into a graph counts as
// completed once it is captured.
struct PeerReport {
  int64_t launched = 0;
  int64_t completed = 0;
  OpKey last;     // the last launch; valid if launched > 0
  OpKey pending;  // the oldest that is not done; valid if completed < launched
  // [R] bytes to and from each rank of an all-to-all that is pending; empty for other ops.
  std::vector<int64_t> send_bytes = {}, recv_bytes = {};
};

struct PeerWatchOptions {
  absl::Duration period = absl::Milliseconds(10);
  absl::Duration timeout = absl::Seconds(5);  // a rank without an answer for so long counts as gone
  // For the peers to know that this rank leaves; then its connections close.
  absl::Duration last_words = absl::Milliseconds(500);
};

class PeerWatch {
 public:
  // Owns `comm`, a host group of the same ranks that nothing else uses.  Both functions are
  // called on the watch's thread, between Start and the end of Stop: `report` once a round; `on_end` at most once, when
  // a peer has failed, is gone or frozen (Unavailable; names it), never after Fail or Leave.
  PeerWatch(std::unique_ptr<Communicator> comm, const PeerWatchOptions& options, std::function<PeerReport()> report,
            std::function<void(const absl::Status&)> on_end);
  ~PeerWatch();  // Stop
  void Start();
  // Leaves, unless Fail was called, and joins the thread.  Idempotent.
  void Stop();

  // Publishes that this rank has failed, and why.  Returns at once; idempotent.
  void Fail(absl::string_view why);
  // Informs the peers that this rank does not need the group any more.  Blocks until they know, options.last_words at
  // most.
  void Leave();

  // The ranks' latest reports, this rank's own among them; before the first round they are empty.
  std::vector<PeerReport> Latest() const;
  // Blocks until all reports are younger than this call.  False: the deadline has passed, or the watch has ended.
  bool AwaitFresh(absl::Time deadline) const;
  // For a group in which a process seems to have ended: the ranks that have said nothing for 250 ms or more.  (An ended
  // process is silent at once; its connections may close seconds later.  If it ended while it sent its report, a rank
  // that did not get it waits for it, and is silent to those that did.)  Blocks until every rank has answered since
  // this call (returns none), the watch has ended (none; on_end was called unless a rank has left), or the deadline.
  std::vector<int> Silent(absl::Time deadline) const;
  // The lowest rank that has left, or -1.
  int left() const;

 private:
  enum class Ending : uint8_t { kNone, kLeft, kFailed };

  void Run();
  // Runs one round.  False: it was the last.
  bool Gather();
  // Blocks until the round's messages are here or do not come in time.  Keeps the ranks whose are missing.
  void AwaitAnswers(Work* work);
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
  std::vector<int> silent_ ABSL_GUARDED_BY(mu_);         // in the round under way,
  absl::Time silent_since_ ABSL_GUARDED_BY(mu_);         // since it began
  int left_ ABSL_GUARDED_BY(mu_) = -1;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace switchyard::comm
