// The tickets of mode priority_ticketed: each is the next all-to-all or sum in the one order that rank 0 decides and
// followers obey (scheduler/PAPERS.md, "Leader's ticket log").  What is ready on rank 0 depends only on earlier
// tickets.
//
// A ticket is a one-way message of class control, which has no other calls meanwhile.  Thread-compatible.  Does not do:
// deciding which ticket is next, and starting what it names (gradient_reducer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::train {

// kEnd: no other ticket follows.
enum class Ticket : uint8_t { kAllToAll, kSum, kEnd };

// Sends rank 0's tickets.
class TicketSender {
 public:
  // comm: rank 0's, borrowed.
  TicketSender(comm::Communicator* comm, absl::Time deadline) : comm_(comm), deadline_(deadline) {}
  // Does not wait for a peer.
  absl::Status Send(Ticket ticket);
  // Blocks until the others have received all tickets, at most until the deadline.
  absl::Status Flush();

 private:
  comm::Communicator* const comm_;
  const absl::Time deadline_;
  std::vector<std::unique_ptr<comm::Work>> sent_;
};

// Blocks until the next ticket arrives, at most until the deadline.  Errors: the communicator's; Internal for another
// message, which ends the group.
absl::StatusOr<Ticket> ReceiveTicket(comm::Communicator* comm, absl::Time deadline);

}  // namespace switchyard::train
