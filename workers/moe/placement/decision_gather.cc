#include "workers/moe/placement/decision_gather.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"

namespace switchyard::moe {
namespace {

// An estimate beyond it is a broken message: more rows than any batch has.  Sums over all ranks stay below 2^63.
constexpr int64_t kMostPopularity = int64_t{1} << 48;
constexpr int64_t kMost16 = UINT16_MAX;
constexpr int kMostShift = 33;  // of kMostPopularity

template <class Value>
void Put(Value value, char* to) {
  std::memcpy(to, &value, sizeof(value));
}
template <class Value>
Value Get(const char* from) {
  Value value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

DecisionGather::DecisionGather(int num_layers, int num_experts, bool estimates)
    : num_layers_(num_layers), num_experts_(num_experts), has_estimates_(estimates), sums_(num_layers) {
  SY_CHECK_LE(num_layers, INT16_MAX);
  const int64_t reported = estimates ? kMaxEstimates : 0;
  layout_.wide = layout_.hash + 8;
  layout_.layers = layout_.wide + 2;
  layout_.shifts = layout_.layers + reported * 2;
  layout_.popularity = layout_.shifts + reported * 2;
  layout_.counts = layout_.popularity + reported * num_experts * 2;
  layout_.bytes = layout_.counts + int64_t{num_experts} * 2;
  mine_.resize(static_cast<size_t>(layout_.bytes));
}

absl::Status DecisionGather::Count(const TensorView& topk_idx) {
  own_counts_.assign(static_cast<size_t>(num_experts_), 0);
  const int64_t top_k = topk_idx.dim(1);
  const int32_t* const idx = topk_idx.empty() ? nullptr : topk_idx.data<int32_t>();
  for (int64_t i = 0; i < topk_idx.NumElements(); ++i) {
    if (idx[i] < -1 || idx[i] >= num_experts_) {
      return absl::InvalidArgumentError(absl::StrCat("decision_gather: topk_idx[", i / top_k, ", ", i % top_k,
                                                     "] = ", idx[i], " is no expert of ", num_experts_));
    }
    if (idx[i] >= 0) ++own_counts_[static_cast<size_t>(idx[i])];
  }
  return absl::OkStatus();
}

absl::Status DecisionGather::PackEstimate(const placement::LayerEstimate& reported, int64_t place) {
  if (static_cast<int>(reported.popularity.size()) != num_experts_) {
    return absl::InternalError(absl::StrCat("decision_gather: an estimate of layer ", reported.layer, " has ",
                                            reported.popularity.size(), " experts of ", num_experts_));
  }
  const int64_t most = *std::max_element(reported.popularity.begin(), reported.popularity.end());
  const int64_t least = *std::min_element(reported.popularity.begin(), reported.popularity.end());
  if (least < 0 || most > kMostPopularity) {
    return absl::InternalError(absl::StrCat("decision_gather: an estimate of layer ", reported.layer, " expects ",
                                            least < 0 ? least : most, " / ", popularity::kRow, " rows for an expert"));
  }
  int shift = 0;
  while (most >> shift > kMost16) ++shift;
  Put(static_cast<int16_t>(reported.layer), mine_.data() + layout_.layers + place * 2);
  Put(static_cast<uint16_t>(shift), mine_.data() + layout_.shifts + place * 2);
  char* to = mine_.data() + layout_.popularity + place * num_experts_ * 2;
  for (const int64_t rows : reported.popularity) {
    Put(static_cast<uint16_t>(rows >> shift), to);
    to += 2;
  }
  return absl::OkStatus();
}

absl::Status DecisionGather::Pack(const LayerContext& layer, uint64_t hash) {
  RETURN_IF_ERROR(Count(layer.topk_on_host));
  std::fill(mine_.begin(), mine_.end(), 0);
  Put(hash, mine_.data() + layout_.hash);
  const bool wide = std::any_of(own_counts_.begin(), own_counts_.end(), [](int32_t rows) { return rows > kMost16; });
  Put<uint16_t>(wide ? 1 : 0, mine_.data() + layout_.wide);
  for (int64_t expert = 0; expert < num_experts_ && !wide; ++expert) {
    Put(static_cast<uint16_t>(own_counts_[static_cast<size_t>(expert)]), mine_.data() + layout_.counts + expert * 2);
  }
  for (int64_t i = 0; has_estimates_ && i < kMaxEstimates; ++i) {
    Put<int16_t>(-1, mine_.data() + layout_.layers + i * 2);
    if (i < static_cast<int64_t>(layer.estimates.size())) {
      RETURN_IF_ERROR(PackEstimate(layer.estimates[static_cast<size_t>(i)], i));
    }
  }
  return absl::OkStatus();
}

absl::Status DecisionGather::ReadEstimates(const char* message, int rank) {
  for (int64_t i = 0; i < kMaxEstimates; ++i) {
    const auto layer = Get<int16_t>(message + layout_.layers + i * 2);
    const auto shift = Get<uint16_t>(message + layout_.shifts + i * 2);
    if (layer == -1) continue;
    if (layer < 0 || layer >= num_layers_ || shift > kMostShift) {
      return absl::InternalError(absl::StrCat("decision_gather: rank ", rank, " expects something of layer ", layer,
                                              " of ", num_layers_, ", times 2^", shift));
    }
    popularity::Popularity& sum = sums_[static_cast<size_t>(layer)];
    sum.resize(static_cast<size_t>(num_experts_), 0);
    const char* from = message + layout_.popularity + i * num_experts_ * 2;
    for (int64_t& rows : sum) {
      rows += int64_t{Get<uint16_t>(from)} << shift;
      from += 2;
    }
  }
  return absl::OkStatus();
}

absl::Status DecisionGather::Read(const MoeContext& context, const LayerContext& layer,
                                  absl::Span<const char* const> messages) {
  const auto width = static_cast<size_t>(num_experts_);
  counts_.resize(messages.size() * width);
  for (popularity::Popularity& sum : sums_) sum.clear();
  bool wide = false;
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    wide = wide || Get<uint16_t>(messages[rank] + layout_.wide) != 0;
    for (size_t expert = 0; expert < width; ++expert) {
      counts_[rank * width + expert] = Get<uint16_t>(messages[rank] + layout_.counts + expert * 2);
    }
    if (has_estimates_) RETURN_IF_ERROR(ReadEstimates(messages[rank], static_cast<int>(rank)));
  }
  if (wide) RETURN_IF_ERROR(ReadWideCounts(context, layer));
  reported_.clear();
  for (int ahead = 1; ahead <= num_layers_; ++ahead) {
    const int coming = (layer.index + ahead) % num_layers_;
    if (!sums_[static_cast<size_t>(coming)].empty()) reported_.push_back({coming, sums_[static_cast<size_t>(coming)]});
  }
  return absl::OkStatus();
}

// All ranks call this together, as all have seen that a rank's counts do not fit.
absl::Status DecisionGather::ReadWideCounts(const MoeContext& context, const LayerContext& layer) {
  const size_t bytes = own_counts_.size() * sizeof(int32_t);
  if (context.comm->world() == 1) {
    counts_ = own_counts_;
    return absl::OkStatus();
  }
  std::unique_ptr<comm::Work> work;
  ASSIGN_OR_RETURN(work, context.comm->AllGather(context.Call(comm::CallUse::kDecisionGather, layer.index, 1),
                                                 {reinterpret_cast<const char*>(own_counts_.data()), bytes}));
  RETURN_IF_ERROR(work->Wait());
  for (size_t rank = 0; rank < work->received().size(); ++rank) {
    int32_t* const counts = counts_.data() + rank * own_counts_.size();
    std::memcpy(counts, work->received()[rank].payload(), bytes);
    if (std::any_of(counts, counts + num_experts_, [](int32_t count) { return count < 0; })) {
      return absl::InternalError(absl::StrCat("decision_gather: rank ", rank, " sent a negative number of rows"));
    }
  }
  return absl::OkStatus();
}

// All ranks call this together, as all have seen the same hashes.
absl::Status DecisionGather::NameMismatch(const MoeContext& context, const LayerContext& layer,
                                          const placement::DecisionDigest& mine) {
  using Fields = std::array<uint64_t, placement::kNumDecisionFields>;
  const Fields& fields = mine.fields();
  std::unique_ptr<comm::Work> work;
  ASSIGN_OR_RETURN(work, context.comm->AllGather(context.Call(comm::CallUse::kDecisionGather, layer.index, 2),
                                                 {reinterpret_cast<const char*>(fields.data()), sizeof(fields)}));
  RETURN_IF_ERROR(work->Wait());
  const auto digest_of = [&](int rank) {
    return placement::DecisionDigest(Get<Fields>(work->received()[static_cast<size_t>(rank)].payload()));
  };
  const placement::DecisionDigest first = digest_of(0);
  std::string differences;
  for (int rank = 1; rank < context.comm->world(); ++rank) {
    const std::string difference = placement::DescribeMismatch(first, 0, digest_of(rank), rank);
    if (!difference.empty()) absl::StrAppend(&differences, differences.empty() ? "" : "; ", difference);
  }
  return absl::InternalError(
      absl::StrCat("placement: before MoE layer ", layer.index, " ranks had decided differently: ", differences));
}

absl::StatusOr<DecisionGather::Reported> DecisionGather::Gather(const MoeContext& context, const LayerContext& layer,
                                                                const placement::DecisionDigest& last) {
  const comm::Timed exchange(&context.stats->exchange_seconds), gather(&context.stats->gather_seconds);
  const int world = context.comm->world();
  RETURN_IF_ERROR(Pack(layer, last.hash()));
  std::vector<const char*> messages = {mine_.data()};
  std::unique_ptr<comm::Work> work;
  if (world > 1) {
    ASSIGN_OR_RETURN(work, context.comm->AllGather(context.Call(comm::CallUse::kDecisionGather, layer.index), mine_));
    RETURN_IF_ERROR(work->Wait());
    // (The communicator has checked that all sent the same size.)
    messages.clear();
    for (const comm::Message& message : work->received()) messages.push_back(message.payload());
  }
  const bool alike = std::all_of(messages.begin(), messages.end(), [&](const char* message) {
    return std::memcmp(message + layout_.hash, messages[0] + layout_.hash, 8) == 0;
  });
  const absl::Status status = alike ? Read(context, layer, messages) : NameMismatch(context, layer, last);
  if (!status.ok()) {
    if (world > 1) context.comm->Abort(status.message());
    return status;
  }
  return Reported{.counts = {.num_ranks = world, .num_experts = num_experts_, .rows = counts_}, .estimates = reported_};
}

}  // namespace switchyard::moe
