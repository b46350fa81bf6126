#include "workers/comm/local/reduce_work.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy_bytes.h"

namespace switchyard::comm {
namespace {

// Checks that all ranks sent the same size; a mismatch shows only here.
absl::Status CheckSizes(Communicator* comm, const std::vector<Message>& received, int64_t wanted) {
  for (int r = 0; r < comm->world(); ++r) {
    RETURN_IF_ERROR(ExpectBytes(comm, "a sum", r, received[r].bytes(), wanted));
  }
  return absl::OkStatus();
}

constexpr int64_t kPieceBytes = 256 << 10;  // stays in the cache

// Messages, from a byte of each on.
struct Received {
  const std::vector<Message>& messages;
  int64_t at = 0;
  size_t size() const { return messages.size(); }
  template <class Elem>
  const Elem* Of(size_t rank) const {
    return reinterpret_cast<const Elem*>(messages[rank].payload() + at);
  }
};

// Elements [begin, end).
template <class Elem>
void SumPiece(const Received& received, Elem* out, int64_t begin, int64_t end) {
  std::memcpy(out + begin, received.Of<Elem>(0) + begin, static_cast<size_t>(end - begin) * sizeof(Elem));
  for (size_t r = 1; r < received.size(); ++r) {
    const Elem* part = received.Of<Elem>(r);
    for (int64_t i = begin; i < end; ++i) out[i] += part[i];
  }
}

// In fp32, rounded once.
void SumPiece(const Received& received, Bf16* out, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 1024;
  std::array<float, kBlock> sums;
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t count = std::min(kBlock, end - block);
    for (size_t r = 0; r < received.size(); ++r) {
      const Bf16* part = received.Of<Bf16>(r) + block;
      for (int64_t i = 0; i < count; ++i) {
        sums[i] = r == 0 ? static_cast<float>(part[i]) : sums[i] + static_cast<float>(part[i]);
      }
    }
    for (int64_t i = 0; i < count; ++i) out[block + i] = Bf16(sums[i]);
  }
}

template <class Elem>
void SumInRankOrder(const Received& received, Elem* out, int64_t n) {
  constexpr int64_t kPiece = kPieceBytes / static_cast<int64_t>(sizeof(Elem));
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    SumPiece(received, out, begin, std::min(n, begin + kPiece));
  }
}

// out = the sum of the values from byte `at` of each message on.
void Sum(const std::vector<Message>& messages, int64_t at, const TensorView& out) {
  const Received received = {messages, at};
  const int64_t n = out.NumElements();
  if (n == 0) return;
  if (out.dtype() == DType::kF32) {
    SumInRankOrder(received, out.data<float>(), n);
  } else if (out.dtype() == DType::kF64) {
    SumInRankOrder(received, out.data<double>(), n);
  } else if (out.dtype() == DType::kBf16) {
    SumInRankOrder(received, out.data<Bf16>(), n);
  } else {
    SumInRankOrder(received, out.data<int64_t>(), n);
  }
}

class ReduceScatterWork : public OnceWork {
 public:
  ReduceScatterWork(Communicator* comm, std::unique_ptr<Work> exchange, std::vector<TensorView> pieces)
      : comm_(comm), exchange_(std::move(exchange)), pieces_(std::move(pieces)) {
    received_.resize(comm->world());
  }
  std::vector<int> AwaitMessages(absl::Time until) override {
    return exchange_ == nullptr ? std::vector<int>() : exchange_->AwaitMessages(until);
  }

 private:
  absl::Status Finish() override {
    const std::unique_ptr<Work> exchange = std::move(exchange_);
    RETURN_IF_ERROR(exchange->Wait());
    RETURN_IF_ERROR(CheckSizes(comm_, exchange->received(), BytesOfPieces(pieces_)));
    int64_t at = 0;
    for (const TensorView& piece : pieces_) {
      Sum(exchange->received(), at, piece);
      at += NumBytes(piece);
    }
    return absl::OkStatus();
  }

  Communicator* const comm_;
  std::unique_ptr<Work> exchange_;
  const std::vector<TensorView> pieces_;
};

class AllReduceWork : public OnceWork {
 public:
  AllReduceWork(Communicator* comm, std::unique_ptr<Work> parts, const OpKey& key, absl::Time deadline,
                const TensorView& values)
      : comm_(comm), parts_(std::move(parts)), key_(key), deadline_(deadline), values_(values) {
    received_.resize(comm->world());
  }

 private:
  TensorView PartOfValues(int rank) const {
    const PartOfRank part = PartOf(values_.NumElements(), rank, comm_->world());
    return values_.Reshape({values_.NumElements()}).Rows(part.begin, part.count);
  }

  absl::Status Finish() override {
    const std::unique_ptr<Work> parts = std::move(parts_);
    RETURN_IF_ERROR(parts->Wait());
    const TensorView mine = PartOfValues(comm_->rank());
    const int64_t mine_bytes = NumBytes(mine);
    RETURN_IF_ERROR(CheckSizes(comm_, parts->received(), mine_bytes));
    Sum(parts->received(), 0, mine);

    std::vector<Message> out(static_cast<size_t>(comm_->world()));
    for (int r = 0; r < comm_->world(); ++r) {
      if (r == comm_->rank()) continue;
      out[r] = comm_->NewMessage(mine_bytes);
      CopyBytes(out[r].payload(), mine.raw(), mine_bytes);
    }
    Communicator::Exchange exchange = comm_->ToAll(key_, deadline_, std::move(out));
    exchange.round = 1;
    ASSIGN_OR_RETURN(std::unique_ptr<Work> gather, comm_->StartExchange(std::move(exchange)));
    RETURN_IF_ERROR(gather->Wait());
    for (int r = 0; r < comm_->world(); ++r) {
      if (r == comm_->rank()) continue;
      const TensorView part = PartOfValues(r);
      const int64_t bytes = NumBytes(part);
      const Message& message = gather->received()[r];
      RETURN_IF_ERROR(ExpectBytes(comm_, "the gather of a sum", r, message.bytes(), bytes));
      CopyBytes(part.raw(), message.payload(), bytes);
    }
    return absl::OkStatus();
  }

  Communicator* const comm_;
  std::unique_ptr<Work> parts_;
  const OpKey key_;
  const absl::Time deadline_;
  const TensorView values_;
};

}  // namespace

int64_t BytesOfPieces(const std::vector<TensorView>& pieces) {
  int64_t bytes = 0;
  for (const TensorView& piece : pieces) bytes += NumBytes(piece);
  return bytes;
}

std::unique_ptr<Work> MakeReduceScatterWork(Communicator* comm, std::unique_ptr<Work> exchange,
                                            std::vector<TensorView> pieces) {
  return std::make_unique<ReduceScatterWork>(comm, std::move(exchange), std::move(pieces));
}

std::unique_ptr<Work> MakeAllReduceWork(Communicator* comm, std::unique_ptr<Work> parts, const OpKey& key,
                                        absl::Time deadline, const TensorView& values) {
  return std::make_unique<AllReduceWork>(comm, std::move(parts), key, deadline, values);
}

}  // namespace switchyard::comm
