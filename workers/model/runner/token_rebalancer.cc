#include "workers/model/runner/token_rebalancer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/call_tag.h"
#include "workers/comm/core/timed.h"

namespace switchyard::model {
namespace {

// The rates of one thread, measured in whole layers.
constexpr double kFlopPerSecondAmx = 0.52e12;
constexpr double kFlopPerSecondBf16 = 0.33e12;
constexpr double kFlopPerSecondFma = 0.1e12;  // fp32, and what is widened to it: a guess
constexpr double kBytesPerSecond = 0.5e9;     // of transfers, waiting included
constexpr double kSecondsPerLayer = 1e-3;     // of two small exchanges
constexpr double kWorthIt = 1.5;              // gain over cost: the error of estimates
constexpr int32_t kFewest = 32;
constexpr double kNoStepHasMore = 1e6;

double FlopPerSecond(DType dtype, ops::Isa isa) {
  if (dtype != DType::kBf16 || isa < ops::Isa::kAvx512Bf16) return kFlopPerSecondFma;
  return isa == ops::Isa::kAmx ? kFlopPerSecondAmx : kFlopPerSecondBf16;
}

int64_t RowBytes(const TensorView& rows) { return rows.dim(1) * DTypeBytes(rows.dtype()); }

char* RowAt(const TensorView& rows, int64_t row) { return static_cast<char*>(rows.raw()) + row * RowBytes(rows); }

absl::Status BadTransfer(const batching::RowTransfer& transfer, absl::string_view what) {
  return absl::InternalError(absl::StrCat("plan: transfer of ", transfer.rows, " rows from rank ", transfer.from,
                                          " to rank ", transfer.to, ": ", what));
}

absl::Status Mismatch(int peer, int64_t bytes, int64_t expected) {
  return absl::InternalError(
      absl::StrCat("token rebalancing: rank ", peer, " sent ", bytes, " bytes, expected ", expected));
}

}  // namespace

absl::Status TokenRebalancer::Begin(absl::Span<const batching::RowTransfer> transfers, int64_t planned_rows,
                                    comm::Communicator* comm, absl::Time deadline, Batch* batch) {
  comm_ = comm;
  deadline_ = deadline;
  batch_ = batch;
  active_ = !transfers.empty();
  work_.reset();
  num_exchanges_ = 0;
  given_.clear();
  borrowed_.clear();
  exchange_seconds_ = 0;
  if (!active_) return absl::OkStatus();
  const comm::Timed timed(&exchange_seconds_);
  RETURN_IF_ERROR(TakeTransfers(transfers, planned_rows));
  SplitSequences(given_.empty() ? batch->num_own_rows() : given_.front().row);
  RETURN_IF_ERROR(SendTokens());
  RETURN_IF_ERROR(work_->Wait());
  for (Stretch& stretch : borrowed_) RETURN_IF_ERROR(TakeTokens(work_->received()[stretch.peer], &stretch));
  work_.reset();
  return absl::OkStatus();
}

absl::Status TokenRebalancer::TakeTransfers(absl::Span<const batching::RowTransfer> transfers, int64_t planned_rows) {
  const int me = comm_->rank();
  int64_t given = 0;
  for (const batching::RowTransfer& transfer : transfers) {
    if (std::min(transfer.from, transfer.to) < 0 || std::max(transfer.from, transfer.to) >= comm_->world() ||
        transfer.from == transfer.to) {
      return BadTransfer(transfer, absl::StrCat("wants two ranks of ", comm_->world()));
    }
    if (transfer.rows < 1) return BadTransfer(transfer, "wants at least one row");
    if (transfer.from == me) given += transfer.rows;
    if (transfer.from == me) given_.push_back({.peer = transfer.to, .count = transfer.rows});
    if (transfer.to == me) borrowed_.push_back({.peer = transfer.from, .count = transfer.rows});
    if (!given_.empty() && !borrowed_.empty())
      return BadTransfer(transfer, absl::StrCat("rank ", me, " gives and borrows"));
  }
  if (given > planned_rows) {
    return absl::InternalError(
        absl::StrCat("plan: transfers of ", given, " of the ", planned_rows, " rows of rank ", me));
  }
  // Rows of a sequence that broke (a NaN) are not in the batch: this rank gives away as many fewer.
  const int64_t own = batch_->num_own_rows();
  int64_t row = std::max<int64_t>(0, own - given);
  for (Stretch& stretch : given_) {
    stretch.row = row;
    stretch.count = std::min(stretch.count, own - row);
    row += stretch.count;
  }
  return absl::OkStatus();
}

void TokenRebalancer::SplitSequences(int64_t kept) {
  kept_sequences_.clear();
  given_sequences_.clear();
  for (const ops::SequenceRows& sequence : batch_->sequences) {
    ops::SequenceRows head = sequence, tail = sequence;
    head.num_query =
        static_cast<int32_t>(std::clamp<int64_t>(kept - sequence.row_begin, 0, int64_t{sequence.num_query}));
    tail.row_begin += head.num_query;
    tail.start_pos += head.num_query;
    tail.num_query -= head.num_query;
    if (head.num_query > 0) kept_sequences_.push_back(head);
    if (tail.num_query > 0) given_sequences_.push_back(tail);
  }
}

// A message: rows, wanted rows, then tokens [rows], RoPE rows [rows], adapters [rows] (0 where there are none), which
// rows are wanted [wanted]; all int32.
absl::Status TokenRebalancer::SendTokens() {
  std::vector<comm::Message> out(comm_->world());
  for (Stretch& stretch : given_) {
    for (const int32_t row : batch_->logit_rows) {
      const int64_t index = row - stretch.row;
      if (0 <= index && index < stretch.count) stretch.wanted.push_back(static_cast<int32_t>(index));
    }
    const auto wanted = static_cast<int64_t>(stretch.wanted.size());
    comm::Message& message = out[stretch.peer];
    message = comm_->NewMessage((2 + 3 * stretch.count + wanted) * static_cast<int64_t>(sizeof(int32_t)));
    auto* at = reinterpret_cast<int32_t*>(message.payload());
    *at++ = static_cast<int32_t>(stretch.count);
    *at++ = static_cast<int32_t>(wanted);
    at = std::copy_n(batch_->tokens.begin() + stretch.row, stretch.count, at);
    at = std::copy_n(batch_->rope_rows.begin() + stretch.row, stretch.count, at);
    at = batch_->adapters.empty() ? std::fill_n(at, stretch.count, 0)
                                  : std::copy_n(batch_->adapters.begin() + stretch.row, stretch.count, at);
    std::copy(stretch.wanted.begin(), stretch.wanted.end(), at);
  }
  if (!given_.empty()) {
    batch_->tokens.resize(given_.front().row);
    batch_->rope_rows.resize(given_.front().row);
    if (!batch_->adapters.empty()) batch_->adapters.resize(given_.front().row);
  }
  return Exchange(std::move(out));
}

absl::Status TokenRebalancer::TakeTokens(const comm::Message& message, Stretch* stretch) {
  constexpr auto kWord = static_cast<int64_t>(sizeof(int32_t));
  const int64_t words = message.bytes() / kWord;
  const auto* at = reinterpret_cast<const int32_t*>(message.payload());
  if (words < 2) return Mismatch(stretch->peer, message.bytes(), 2 * kWord);
  const int64_t rows = at[0], wanted = at[1];
  if (rows < 0 || rows > stretch->count || wanted < 0 || wanted > rows) {
    return absl::InternalError(absl::StrCat("token rebalancing: rank ", stretch->peer, " sends ", rows, " rows, ",
                                            wanted, " of them wanted; the plan has ", stretch->count));
  }
  const int64_t expected = (2 + 3 * rows + wanted) * kWord;
  if (message.bytes() != expected) return Mismatch(stretch->peer, message.bytes(), expected);
  stretch->row = batch_->num_rows();
  stretch->count = rows;
  const int32_t* tokens = at + 2;
  batch_->tokens.insert(batch_->tokens.end(), tokens, tokens + rows);
  batch_->rope_rows.insert(batch_->rope_rows.end(), tokens + rows, tokens + 2 * rows);
  batch_->adapters.resize(static_cast<size_t>(stretch->row));  // (there may be none yet)
  batch_->adapters.insert(batch_->adapters.end(), tokens + 2 * rows, tokens + 3 * rows);
  stretch->wanted.assign(tokens + 3 * rows, tokens + 3 * rows + wanted);
  for (const int32_t row : stretch->wanted) {
    if (row >= 0 && row < rows) continue;
    return absl::InternalError(
        absl::StrCat("token rebalancing: rank ", stretch->peer, " wants row ", row, " of ", rows, " back"));
  }
  return absl::OkStatus();
}

absl::Status TokenRebalancer::Exchange(std::vector<comm::Message> out) {
  SY_CHECK(work_ == nullptr);
  ASSIGN_OR_RETURN(work_, comm_->AllToAllV({.deadline = deadline_,
                                            .tag = comm::NumberedTag(comm::CallUse::kGivenRows, num_exchanges_++)},
                                           std::move(out)));
  return absl::OkStatus();
}

absl::Status TokenRebalancer::Start(const std::vector<Stretch>& stretches, const TensorView& rows) {
  const comm::Timed timed(&exchange_seconds_);
  SY_CHECK(rows.contiguous());
  std::vector<comm::Message> out(comm_->world());
  for (const Stretch& stretch : stretches) {
    const int64_t bytes = stretch.count * RowBytes(rows);
    if (bytes == 0) continue;
    out[stretch.peer] = comm_->NewMessage(bytes);
    std::memcpy(out[stretch.peer].payload(), RowAt(rows, stretch.row), bytes);
  }
  return Exchange(std::move(out));
}

absl::Status TokenRebalancer::Finish(const std::vector<Stretch>& stretches, const TensorView& rows) {
  const comm::Timed timed(&exchange_seconds_);
  RETURN_IF_ERROR(work_->Wait());
  for (const Stretch& stretch : stretches) {
    const comm::Message& message = work_->received()[stretch.peer];
    const int64_t bytes = stretch.count * RowBytes(rows);
    if (message.bytes() != bytes) return Mismatch(stretch.peer, message.bytes(), bytes);
    if (bytes > 0) std::memcpy(RowAt(rows, stretch.row), message.payload(), bytes);
  }
  work_.reset();
  return absl::OkStatus();
}

absl::Status TokenRebalancer::ReturnWanted(const TensorView& residual) {
  const comm::Timed timed(&exchange_seconds_);
  const int64_t row_bytes = RowBytes(residual);
  std::vector<comm::Message> out(comm_->world());
  for (const Stretch& stretch : borrowed_) {
    if (stretch.wanted.empty()) continue;
    comm::Message& message = out[stretch.peer];
    message = comm_->NewMessage(static_cast<int64_t>(stretch.wanted.size()) * row_bytes);
    char* at = message.payload();
    for (const int32_t row : stretch.wanted) {
      std::memcpy(at, RowAt(residual, stretch.row + row), row_bytes);
      at += row_bytes;
    }
  }
  RETURN_IF_ERROR(Exchange(std::move(out)));
  RETURN_IF_ERROR(work_->Wait());
  for (const Stretch& stretch : given_) {
    const comm::Message& message = work_->received()[stretch.peer];
    const int64_t bytes = static_cast<int64_t>(stretch.wanted.size()) * row_bytes;
    if (message.bytes() != bytes) return Mismatch(stretch.peer, message.bytes(), bytes);
    const char* at = message.payload();
    for (const int32_t row : stretch.wanted) {
      std::memcpy(RowAt(residual, stretch.row + row), at, row_bytes);
      at += row_bytes;
    }
  }
  work_.reset();
  return absl::OkStatus();
}

int32_t MinRebalanceRows(const ModelConfig& config, DType dtype, ops::Isa isa, int threads) {
  const auto width = static_cast<double>(config.qkv_width() + config.q_width());
  const double rate = FlopPerSecond(dtype, isa) * threads;
  const double saved = 2 * static_cast<double>(config.hidden) * width / rate;
  const double cost = kWorthIt * width * static_cast<double>(DTypeBytes(dtype)) / kBytesPerSecond;
  if (saved <= cost) return 0;
  const double rows = kWorthIt * kSecondsPerLayer / (saved - cost);
  return std::max(kFewest, static_cast<int32_t>(std::ceil(std::min(rows, kNoStepHasMore))));
}

}  // namespace switchyard::model
