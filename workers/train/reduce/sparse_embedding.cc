#include "workers/train/reduce/sparse_embedding.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::train {
namespace {

template <class Elem>
void Add(absl::Span<const int32_t> tokens, const Elem* rows, int64_t width, Elem* gradient) {
  for (const int32_t token : tokens) {
    Elem* const to = gradient + token * width;
    for (int64_t i = 0; i < width; ++i) to[i] += rows[i];
    rows += width;
  }
}

}  // namespace

SparseEmbedding::SparseEmbedding(const TensorView& gradient, int rank, int world)
    : gradient_(gradient),
      rank_(rank),
      world_(world),
      slot_of_(static_cast<size_t>(gradient.dim(0))),
      all_tokens_(DType::kI32, {}),
      all_rows_(gradient.dtype(), {gradient.dim(1)}) {
  SY_CHECK(gradient.contiguous() && (gradient.dtype() == DType::kF32 || gradient.dtype() == DType::kF64));
}

int64_t SparseEmbedding::Begin(absl::Span<const TrainRows> micro_batches) {
  own_tokens_.clear();
  for (const TrainRows& rows : micro_batches) {
    own_tokens_.insert(own_tokens_.end(), rows.tokens.begin(), rows.tokens.end());
  }
  std::sort(own_tokens_.begin(), own_tokens_.end());
  own_tokens_.erase(std::unique(own_tokens_.begin(), own_tokens_.end()), own_tokens_.end());
  for (size_t i = 0; i < own_tokens_.size(); ++i) slot_of_[own_tokens_[i]] = static_cast<int32_t>(i);
  return static_cast<int64_t>(own_tokens_.size());
}

absl::Status SparseEmbedding::SetCounts(absl::Span<const int64_t> counts) {
  SY_CHECK(static_cast<int>(counts.size()) == world_ && counts[rank_] == static_cast<int64_t>(own_tokens_.size()));
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  RETURN_IF_ERROR(all_tokens_.Reserve(all));
  RETURN_IF_ERROR(all_rows_.Reserve(all));
  tokens_.clear();
  rows_.clear();
  int64_t begin = 0;
  for (const int64_t count : counts) {
    tokens_.push_back({all_tokens_.Rows(all).Rows(begin, count)});
    rows_.push_back({all_rows_.Rows(all).Rows(begin, count)});
    begin += count;
  }
  std::copy(own_tokens_.begin(), own_tokens_.end(), tokens_[rank_][0].data<int32_t>());
  if (!own_tokens_.empty()) std::memset(own().raw(), 0, static_cast<size_t>(comm::NumBytes(own())));
  return absl::OkStatus();
}

absl::Span<const int32_t> SparseEmbedding::SlotsOf(absl::Span<const int32_t> tokens) {
  slots_.clear();
  for (const int32_t token : tokens) slots_.push_back(slot_of_[token]);
  return slots_;
}

absl::Status SparseEmbedding::AddRows() const {
  for (int r = 0; r < world_; ++r) {
    const TensorView &of_tokens = tokens_[r][0], &rows = rows_[r][0];
    const auto tokens = absl::MakeConstSpan(of_tokens.data<int32_t>(), static_cast<size_t>(of_tokens.dim(0)));
    for (const int32_t token : tokens) {
      if (token >= 0 && token < gradient_.dim(0)) continue;
      return absl::InternalError(absl::StrCat("sparse embedding: rank ", r, " has a row of token ", token,
                                              ", outside [0, ", gradient_.dim(0), ")"));
    }
    if (gradient_.dtype() == DType::kF64) {
      Add(tokens, rows.data<double>(), gradient_.dim(1), gradient_.data<double>());
    } else {
      Add(tokens, rows.data<float>(), gradient_.dim(1), gradient_.data<float>());
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
