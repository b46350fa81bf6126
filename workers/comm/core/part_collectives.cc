#include "workers/comm/core/part_collectives.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/local/reduce_work.h"
#include "workers/tensor/copy_bytes.h"

namespace switchyard::comm {
namespace {

absl::Status CheckParts(const PartViews& parts, int world) {
  SY_CHECK_EQ(static_cast<int>(parts.size()), world);
  for (const std::vector<TensorView>& pieces : parts) {
    for (const TensorView& piece : pieces) {
      if (piece.contiguous() && piece.device().is_cpu()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("a part of a collective must be contiguous on the CPU, is ", piece.ToString()));
    }
  }
  return absl::OkStatus();
}

class PartGatherWork : public OnceWork {
 public:
  PartGatherWork(Communicator* comm, std::unique_ptr<Work> exchange, PartViews parts)
      : comm_(comm), exchange_(std::move(exchange)), parts_(std::move(parts)) {
    received_.resize(static_cast<size_t>(comm->world()));
  }
  std::vector<int> AwaitMessages(absl::Time until) override {
    return exchange_ == nullptr ? std::vector<int>() : exchange_->AwaitMessages(until);
  }

 private:
  absl::Status Finish() override {
    const std::unique_ptr<Work> exchange = std::move(exchange_);
    RETURN_IF_ERROR(exchange->Wait());
    for (int r = 0; r < comm_->world(); ++r) {
      if (r == comm_->rank()) continue;
      RETURN_IF_ERROR(UnpackPieces(comm_, "a gather of parts", r, exchange->received()[r], parts_[r]));
    }
    return absl::OkStatus();
  }

  Communicator* const comm_;
  std::unique_ptr<Work> exchange_;
  const PartViews parts_;
};

}  // namespace

Message PackPieces(Communicator* comm, const std::vector<TensorView>& pieces) {
  Message message = comm->NewMessage(BytesOfPieces(pieces));
  char* to = message.payload();
  for (const TensorView& piece : pieces) {
    CopyBytes(to, piece.raw(), NumBytes(piece));
    to += NumBytes(piece);
  }
  return message;
}

absl::Status UnpackPieces(Communicator* comm, absl::string_view what, int rank, const Message& message,
                          const std::vector<TensorView>& pieces) {
  RETURN_IF_ERROR(ExpectBytes(comm, what, rank, message.bytes(), BytesOfPieces(pieces)));
  const char* from = message.payload();
  for (const TensorView& piece : pieces) {
    CopyBytes(piece.raw(), from, NumBytes(piece));
    from += NumBytes(piece);
  }
  return absl::OkStatus();
}

WorkOr ReduceScatterSum(Communicator* comm, const CommCall& call, const PartViews& parts) {
  RETURN_IF_ERROR(CheckParts(parts, comm->world()));
  std::vector<Message> out;
  for (const std::vector<TensorView>& pieces : parts) out.push_back(PackPieces(comm, pieces));
  ASSIGN_OR_RETURN(std::unique_ptr<Work> exchange, comm->AllToAllV(call, std::move(out)));
  return MakeReduceScatterWork(comm, std::move(exchange), parts[static_cast<size_t>(comm->rank())]);
}

WorkOr AllGatherParts(Communicator* comm, const CommCall& call, const PartViews& parts) {
  RETURN_IF_ERROR(CheckParts(parts, comm->world()));
  std::vector<Message> out(parts.size());
  for (int r = 0; r < comm->world(); ++r) {
    if (r != comm->rank()) out[static_cast<size_t>(r)] = PackPieces(comm, parts[static_cast<size_t>(comm->rank())]);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Work> exchange, comm->AllToAllV(call, std::move(out)));
  return std::make_unique<PartGatherWork>(comm, std::move(exchange), parts);
}

}  // namespace switchyard::comm
