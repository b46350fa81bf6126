#include "workers/moe/decision_gather.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/timed.h"

namespace switchyard {
namespace {

// An estimate beyond it is a broken message: more rows than any batch has.  Sums over all ranks stay below 2^63.
constexpr int64_t kMostPopularity = int64_t{1} << 48;

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
  const int64_t told = estimates ? kMaxEstimates : 0;
  layout_.layers = layout_.hash + 8;
  layout_.popularity = layout_.layers + told * 8;
  layout_.counts = layout_.popularity + told * num_experts * 8;
  layout_.bytes = layout_.counts + int64_t{num_experts} * 4;
  mine_.resize(static_cast<size_t>(layout_.bytes));
}

absl::Status DecisionGather::Pack(const GatedRows& rows, uint64_t hash) {
  std::fill(mine_.begin(), mine_.end(), 0);
  Put(hash, mine_.data() + layout_.hash);
  const int64_t top_k = rows.topk_idx.dim(1);
  const int32_t* const idx = rows.topk_idx.empty() ? nullptr : rows.topk_idx.data<int32_t>();
  auto* const counts = reinterpret_cast<int32_t*>(mine_.data() + layout_.counts);
  for (int64_t i = 0; i < rows.topk_idx.NumElements(); ++i) {
    if (idx[i] < -1 || idx[i] >= num_experts_) {
      return absl::InvalidArgumentError(absl::StrCat("decision_gather: topk_idx[", i / top_k, ", ", i % top_k,
                                                     "] = ", idx[i], " is no expert of ", num_experts_));
    }
    if (idx[i] >= 0) ++counts[idx[i]];
  }
  if (!has_estimates_) return absl::OkStatus();
  for (size_t i = 0; i < kMaxEstimates; ++i) {
    char* const layer = mine_.data() + layout_.layers + i * 8;
    Put<int64_t>(-1, layer);
    if (i >= rows.estimates.size()) continue;
    const LayerEstimate& told = rows.estimates[i];
    if (static_cast<int>(told.popularity.size()) != num_experts_) {
      return absl::InternalError(absl::StrCat("decision_gather: an estimate of layer ", told.layer, " has ",
                                              told.popularity.size(), " experts of ", num_experts_));
    }
    Put<int64_t>(told.layer, layer);
    std::memcpy(mine_.data() + layout_.popularity + i * static_cast<size_t>(num_experts_) * 8, told.popularity.data(),
                told.popularity.size() * 8);
  }
  return absl::OkStatus();
}

absl::Status DecisionGather::ReadEstimates(const char* message, int rank) {
  for (int64_t i = 0; i < kMaxEstimates; ++i) {
    const auto layer = Get<int64_t>(message + layout_.layers + i * 8);
    if (layer == -1) continue;
    if (layer < 0 || layer >= num_layers_) {
      return absl::InternalError(
          absl::StrCat("decision_gather: rank ", rank, " expects something of layer ", layer, " of ", num_layers_));
    }
    Popularity& sum = sums_[static_cast<size_t>(layer)];
    sum.resize(static_cast<size_t>(num_experts_), 0);
    for (int64_t expert = 0; expert < num_experts_; ++expert) {
      const auto rows = Get<int64_t>(message + layout_.popularity + (i * num_experts_ + expert) * 8);
      if (rows < 0 || rows > kMostPopularity) {
        return absl::InternalError(absl::StrCat("decision_gather: rank ", rank, " expects ", rows, " / ", kRow,
                                                " rows for expert ", expert, " of layer ", layer));
      }
      sum[static_cast<size_t>(expert)] += rows;
    }
  }
  return absl::OkStatus();
}

absl::Status DecisionGather::Read(absl::Span<const char* const> messages, int moe_layer) {
  const auto width = static_cast<size_t>(num_experts_);
  counts_.resize(messages.size() * width);
  for (Popularity& sum : sums_) sum.clear();
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    int32_t* const counts = counts_.data() + rank * width;
    std::memcpy(counts, messages[rank] + layout_.counts, width * sizeof(int32_t));
    if (std::any_of(counts, counts + width, [](int32_t count) { return count < 0; })) {
      return absl::InternalError(absl::StrCat("decision_gather: rank ", rank, " told a negative number of rows"));
    }
    if (has_estimates_) RETURN_IF_ERROR(ReadEstimates(messages[rank], static_cast<int>(rank)));
  }
  told_.clear();
  for (int ahead = 1; ahead <= num_layers_; ++ahead) {
    const int layer = (moe_layer + ahead) % num_layers_;
    if (!sums_[static_cast<size_t>(layer)].empty()) told_.push_back({layer, sums_[static_cast<size_t>(layer)]});
  }
  return absl::OkStatus();
}

// All ranks come here together, as all have seen the same hashes.
absl::Status DecisionGather::NameMismatch(const GatedRows& rows, const DecisionDigest& mine) {
  using Fields = std::array<uint64_t, kNumDecisionFields>;
  const Fields& fields = mine.fields();
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, rows.comm->AllGather({.stream = rows.stream, .deadline = rows.deadline},
                                              {reinterpret_cast<const char*>(fields.data()), sizeof(fields)}));
  RETURN_IF_ERROR(work->Wait());
  const auto digest_of = [&](int rank) {
    return DecisionDigest(Get<Fields>(work->received()[static_cast<size_t>(rank)].payload()));
  };
  const DecisionDigest first = digest_of(0);
  std::string differences;
  for (int rank = 1; rank < rows.comm->world(); ++rank) {
    const std::string difference = DescribeMismatch(first, 0, digest_of(rank), rank);
    if (!difference.empty()) absl::StrAppend(&differences, differences.empty() ? "" : "; ", difference);
  }
  return absl::InternalError(
      absl::StrCat("placement: before MoE layer ", rows.moe_layer, " ranks had decided differently: ", differences));
}

absl::StatusOr<DecisionGather::Told> DecisionGather::Gather(const GatedRows& rows, const DecisionDigest& last) {
  const Timed exchange(&rows.stats->exchange_seconds), gather(&rows.stats->gather_seconds);
  const int world = rows.comm->world();
  RETURN_IF_ERROR(Pack(rows, last.hash()));
  std::vector<const char*> messages = {mine_.data()};
  std::unique_ptr<Work> work;
  if (world > 1) {
    ASSIGN_OR_RETURN(work, rows.comm->AllGather({.stream = rows.stream, .deadline = rows.deadline}, mine_));
    RETURN_IF_ERROR(work->Wait());
    // (The communicator has checked that all sent the same size.)
    messages.clear();
    for (const Message& message : work->received()) messages.push_back(message.payload());
  }
  const bool alike = std::all_of(messages.begin(), messages.end(), [&](const char* message) {
    return std::memcmp(message + layout_.hash, messages[0] + layout_.hash, 8) == 0;
  });
  const absl::Status status = alike ? Read(messages, rows.moe_layer) : NameMismatch(rows, last);
  if (!status.ok()) {
    if (world > 1) rows.comm->Abort(status.message());
    return status;
  }
  return Told{.counts = {.num_ranks = world, .num_experts = num_experts_, .rows = counts_}, .estimates = told_};
}

}  // namespace switchyard
