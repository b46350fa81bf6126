#include "workers/moe/dispatch/added_outputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "workers/ops/exchange/combine.h"

namespace switchyard::moe {

void AddedOutputs::Begin(const HostRoutes& routes, int rank, const TensorView& topk_weight) {
  routes_ = &routes;
  rank_ = rank;
  topk_weight_ = topk_weight;
  number_bytes_ = DTypeBytes(topk_weight.dtype());
  partials_ = std::min<int64_t>(topk_weight.dim(1), static_cast<int64_t>(routes.outgoing.size()));
  weights_.resize(routes.outgoing.size());
  for (std::vector<char>& of_rank : weights_) of_rank.clear();
  const HostRoutes::Incoming& own = routes.incoming[static_cast<size_t>(rank)];
  own_partial_.assign(static_cast<size_t>(topk_weight.dim(0)), -1);
  own_partials_ = static_cast<int64_t>(routes.own.size());
  for (size_t i = 0; i < routes.own.size(); ++i)
    own_partial_[static_cast<size_t>(routes.own[i])] = static_cast<int32_t>(i);
  weights_[static_cast<size_t>(rank)].resize(own.row.size() * static_cast<size_t>(number_bytes_));
  std::vector<char*> to(weights_.size(), nullptr);
  to[static_cast<size_t>(rank)] = weights_[static_cast<size_t>(rank)].data();
  PackWeights(to);
}

void AddedOutputs::PackWeights(absl::Span<char* const> to) const {
  const int64_t top_k = topk_weight_.dim(1);
  for (size_t i = 0; i < routes_->rank_of.size(); ++i) {
    const int32_t rank = routes_->rank_of[i];
    if (rank < 0 || to[static_cast<size_t>(rank)] == nullptr) continue;
    const auto at = static_cast<int64_t>(i);
    std::memcpy(to[static_cast<size_t>(rank)] + routes_->pair_of[i] * number_bytes_,
                RowAt(topk_weight_, at / top_k) + at % top_k * number_bytes_, static_cast<size_t>(number_bytes_));
  }
}

void AddedOutputs::TakeWeights(int source, absl::Span<const char> weights) {
  weights_[static_cast<size_t>(source)].assign(weights.begin(), weights.end());
}

int64_t AddedOutputs::NumRows(int source) const {
  return source == rank_ ? own_partials_ : routes_->incoming[static_cast<size_t>(source)].num_rows;
}

void AddedOutputs::PlacePartials(int64_t num_outputs, HostRoutes* routes) {
  const size_t world = routes->outgoing.size();
  routes->back_rows.assign(world + 1, num_outputs);
  for (size_t r = 0; r < world; ++r) {
    const bool own = static_cast<int>(r) == rank_;
    routes->back_rows[r + 1] =
        routes->back_rows[r] + (own ? own_partials_ : static_cast<int64_t>(routes->outgoing[r].token.size()));
  }
  const int64_t top_k = topk_weight_.dim(1);
  const auto num_rows = static_cast<size_t>(topk_weight_.dim(0));
  routes->slot_row.assign(num_rows * static_cast<size_t>(partials_), -1);
  std::vector<std::pair<int32_t, int32_t>> of_row;  // (rank, row of the batch)
  for (size_t t = 0; t < num_rows; ++t) {
    of_row.clear();
    for (size_t i = t * static_cast<size_t>(top_k); i < (t + 1) * static_cast<size_t>(top_k); ++i) {
      const int32_t rank = routes->rank_of[i];
      if (rank < 0) continue;
      const auto r = static_cast<size_t>(rank);
      const int32_t part =
          rank == rank_ ? own_partial_[t] : routes->outgoing[r].pair_row[static_cast<size_t>(routes->pair_of[i])];
      of_row.emplace_back(rank, static_cast<int32_t>(routes->back_rows[r]) + part);
    }
    std::sort(of_row.begin(), of_row.end());
    of_row.erase(std::unique(of_row.begin(), of_row.end()), of_row.end());
    for (size_t i = 0; i < of_row.size(); ++i) {
      routes->slot_row[t * static_cast<size_t>(partials_) + i] = of_row[i].second;
    }
  }
}

absl::Status AddedOutputs::Add(const Stream& stream, int source, const TensorView& y, const TensorView& answer) {
  const HostRoutes::Incoming& from = routes_->incoming[static_cast<size_t>(source)];
  const int64_t num_rows = answer.dim(0), top_k = topk_weight_.dim(1);
  const std::vector<char>& weights = weights_[static_cast<size_t>(source)];
  const TensorView weight = weight_memory_.Rows(num_rows, top_k, topk_weight_.dtype());
  slot_row_.assign(static_cast<size_t>(num_rows * top_k), -1);
  filled_.assign(static_cast<size_t>(num_rows), 0);
  for (size_t i = 0; i < from.row.size(); ++i) {
    const int64_t row = from.row[i] - from.first_row;
    int32_t& filled = filled_[static_cast<size_t>(row)];
    if (filled == top_k) {
      return absl::InternalError(absl::StrCat("combine: rank ", source, " wants more than ", top_k, " experts for row ",
                                              row, " of its message"));
    }
    slot_row_[static_cast<size_t>(row * top_k + filled)] = from.y_row[i];
    std::memcpy(RowAt(weight, row) + filled * number_bytes_, weights.data() + i * static_cast<size_t>(number_bytes_),
                static_cast<size_t>(number_bytes_));
    ++filled;
  }
  // Places without a choice have any weight.
  return ops::AddOutputs(stream, {.y = y, .slot_row = slot_row_, .weight = weight}, answer);
}

}  // namespace switchyard::moe
