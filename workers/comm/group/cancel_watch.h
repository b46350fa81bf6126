// Hears of a cancelled forming for who waits for something else than the store, and frees it.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::comm {

// While it lives, a thread of its own calls `cancel` every 50 ms once the store is cancelled: again, as what is
// cancelled may just then have begun another wait.  `cancel` does not throw; it is not called any more when the
// destructor returns.
class CancelWatch {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(50);

  // store: borrowed.
  CancelWatch(RendezvousStore* store, std::function<void(const absl::Status&)> cancel)
      : thread_([this, store, cancel = std::move(cancel)] {
          while (!over_.WaitForNotificationWithTimeout(kPeriod)) {
            if (const absl::Status status = store->Cancelled(); !status.ok()) cancel(status);
          }
        }) {}
  ~CancelWatch() {
    over_.Notify();
    thread_.join();
  }
  CancelWatch(const CancelWatch&) = delete;
  CancelWatch& operator=(const CancelWatch&) = delete;

 private:
  absl::Notification over_;
  std::thread thread_;  // last: it uses what is above
};

}  // namespace switchyard::comm
