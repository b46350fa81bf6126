#include "workers/train/reduce/grad_sync_tickets.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {

absl::Status TicketSender::Send(Ticket ticket) {
  for (int rank = 1; rank < comm_->world(); ++rank) {
    Message message = comm_->NewMessage(1);
    *message.payload() = static_cast<char>(ticket);
    ASSIGN_OR_RETURN(std::unique_ptr<Work> work,
                     comm_->Send({.comm_class = CommClass::kControl, .deadline = deadline_}, rank, std::move(message)));
    sent_.push_back(std::move(work));
  }
  return absl::OkStatus();
}

absl::Status TicketSender::Flush() {
  for (const std::unique_ptr<Work>& work : sent_) RETURN_IF_ERROR(work->Wait());
  sent_.clear();
  return absl::OkStatus();
}

absl::StatusOr<Ticket> ReceiveTicket(Communicator* comm, absl::Time deadline) {
  ASSIGN_OR_RETURN(std::unique_ptr<Work> work,
                   comm->Recv({.comm_class = CommClass::kControl, .deadline = deadline}, /*peer=*/0));
  RETURN_IF_ERROR(work->Wait());
  const Message& message = work->received()[0];
  const int kind = message.bytes() == 1 ? *message.payload() : -1;
  if (kind >= 0 && kind < kNumTickets) return static_cast<Ticket>(kind);
  const absl::Status status = absl::InternalError(
      absl::StrCat("rank 0 sent ", message.bytes(), " bytes (", kind, ") where a ticket was expected"));
  comm->Abort(status.message());
  return status;
}

}  // namespace switchyard
