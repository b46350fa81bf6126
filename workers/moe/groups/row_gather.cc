#include "workers/moe/groups/row_gather.h"

#include <cstring>
#include <utility>

#include "absl/strings/string_view.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/dispatch/host_routes.h"

namespace switchyard::moe {
namespace {

constexpr absl::string_view kGatherOfRows = "a gather of rows";

}  // namespace

int64_t RowGather::BytesOfRow() const {
  int64_t bytes = 0;
  for (const TensorView& matrix : matrices_) bytes += RowBytes(matrix);
  return bytes;
}

absl::Status RowGather::Start(const Stream& stream, comm::Communicator* among, const comm::CommCall& call,
                              std::vector<TensorView> matrices, absl::Span<const int32_t> mine) {
  among_ = among;
  matrices_ = std::move(matrices);
  mine_ = mine;
  std::vector<comm::Message> out(static_cast<size_t>(among->world()));
  const char* packed = nullptr;  // the same rows for every rank
  for (int rank = 0; rank < among->world(); ++rank) {
    if (rank == among->rank() || mine.empty()) continue;
    out[rank] = among->NewMessage(static_cast<int64_t>(mine.size()) * BytesOfRow());
    char* to = out[rank].payload();
    if (packed != nullptr) {
      std::memcpy(to, packed, static_cast<size_t>(out[rank].bytes()));
      continue;
    }
    packed = to;
    for (const TensorView& matrix : matrices_) {
      GatherTo(stream, matrix, mine, to);
      to += static_cast<int64_t>(mine.size()) * RowBytes(matrix);
    }
  }
  ASSIGN_OR_RETURN(work_, among->AllToAllV(call, std::move(out)));
  return absl::OkStatus();
}

absl::Status RowGather::Finish() { return work_->Wait(); }

absl::StatusOr<int64_t> RowGather::RowsOf(int rank) const {
  if (rank == among_->rank()) return static_cast<int64_t>(mine_.size());
  const int64_t bytes = work_->received()[rank].bytes(), rows = bytes / BytesOfRow();
  RETURN_IF_ERROR(comm::ExpectBytes(among_, kGatherOfRows, rank, bytes, rows * BytesOfRow()));
  return rows;
}

absl::Status RowGather::Place(int rank, absl::Span<const int32_t> at, absl::Span<const TensorView> to) const {
  SY_CHECK_EQ(to.size(), matrices_.size());
  const auto rows = static_cast<int64_t>(at.size());
  ASSIGN_OR_RETURN(const int64_t sent, RowsOf(rank));
  RETURN_IF_ERROR(comm::ExpectBytes(among_, kGatherOfRows, rank, sent * BytesOfRow(), rows * BytesOfRow()));
  if (rows == 0) return absl::OkStatus();
  const bool own = rank == among_->rank();
  const char* from = own ? nullptr : work_->received()[rank].payload();
  for (size_t m = 0; m < to.size(); ++m) {
    const int64_t bytes = RowBytes(matrices_[m]);
    SY_CHECK_EQ(RowBytes(to[m]), bytes);
    for (int64_t i = 0; i < rows; ++i) {
      const char* const row = own ? RowAt(matrices_[m], mine_[i]) : from + i * bytes;
      char* const place = RowAt(to[m], at[i]);
      if (row != place) std::memcpy(place, row, static_cast<size_t>(bytes));
    }
    if (!own) from += rows * bytes;
  }
  return absl::OkStatus();
}

}  // namespace switchyard::moe
