// Tickets: the one order of all-to-alls and sums that rank 0 decides and tells the others, in priority_ticketed.
//
// A follower takes what it does strictly from here, so all ranks have one order whatever they see (scheduler/PAPERS.md,
// "Leader's ticket log").  It is safe because what is ready on rank 0 depends only on what was ticketed before.
// One-way messages of class control, which nobody else may use meanwhile.  Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::train {

enum class Ticket : uint8_t { kAllToAll, kSum, kEnd };  // the next one of its kind
inline constexpr int kNumTickets = 3;

class TicketSender {
 public:
  // comm: borrowed.  Of rank 0.
  TicketSender(comm::Communicator* comm, absl::Time deadline) : comm_(comm), deadline_(deadline) {}
  // Blocks on nobody.
  absl::Status Send(Ticket ticket);
  // Until the others have taken them all.
  absl::Status Flush();

 private:
  comm::Communicator* const comm_;
  const absl::Time deadline_;
  std::vector<std::unique_ptr<comm::Work>> sent_;
};

// The next one.  Blocks until it has come.  Errors: the communicator's; Internal if it is none, which ends the group.
absl::StatusOr<Ticket> ReceiveTicket(comm::Communicator* comm, absl::Time deadline);

}  // namespace switchyard::train
