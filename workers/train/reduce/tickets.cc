#include "workers/train/reduce/tickets.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/op_key.h"
#include "workers/comm/local/message.h"

namespace switchyard::train {
namespace {

constexpr int kNumTickets = 3;

}  // namespace

absl::Status TicketSender::Send(Ticket ticket) {
  for (int rank = 1; rank < comm_->world(); ++rank) {
    comm::Message message = comm_->NewMessage(1);
    *message.payload() = static_cast<char>(ticket);
    ASSIGN_OR_RETURN(
        std::unique_ptr<comm::Work> work,
        comm_->Send({.comm_class = comm::CommClass::kControl, .deadline = deadline_}, rank, std::move(message)));
    sent_.push_back(std::move(work));
  }
  return absl::OkStatus();
}

absl::Status TicketSender::Flush() {
  for (const std::unique_ptr<comm::Work>& work : sent_) RETURN_IF_ERROR(work->Wait());
  sent_.clear();
  return absl::OkStatus();
}

absl::StatusOr<Ticket> ReceiveTicket(comm::Communicator* comm, absl::Time deadline) {
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work,
                   comm->Recv({.comm_class = comm::CommClass::kControl, .deadline = deadline}, /*peer=*/0));
  RETURN_IF_ERROR(work->Wait());
  const comm::Message& message = work->received()[0];
  const int kind = message.bytes() == 1 ? *message.payload() : -1;
  if (kind >= 0 && kind < kNumTickets) return static_cast<Ticket>(kind);
  const absl::Status status = absl::InternalError(
      absl::StrCat("rank 0 sent ", message.bytes(), " bytes (", kind, ") where a ticket was expected"));
  comm->Abort(status.message());
  return status;
}

}  // namespace switchyard::train
