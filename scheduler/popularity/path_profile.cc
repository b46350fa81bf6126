#include "scheduler/popularity/path_profile.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::popularity {
namespace {

// A path's element takes 21 bits: a mark that it is there, then two expert ids + 1 in 10 bits each, the smaller one
// first; 0 = dropped or no second choice.  Three elements fit a word, the newest in the lowest bits.
constexpr int kIdBits = 10, kElementBits = 2 * kIdBits + 1, kElementsPerWord = 3;
constexpr int kMaxExperts = (1 << kIdBits) - 2, kMaxLayers = 4096, kMaxTopK = 64;
constexpr int64_t kMinRows = 4, kMaxRows = int64_t{1} << 20;

absl::Status CheckIn(absl::string_view field, int64_t least, int64_t most, int64_t actual) {
  if (actual >= least && actual <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("path profile: ", field, " is ", actual, ", not in [", least, ", ", most, "]"));
}

uint64_t ElementOf(absl::Span<const int16_t> experts, int num_choices) {
  uint64_t a = experts[0] < 0 ? 0 : static_cast<uint64_t>(experts[0]) + 1;
  uint64_t b = num_choices < 2 || experts.size() < 2 || experts[1] < 0 ? 0 : static_cast<uint64_t>(experts[1]) + 1;
  if (a > b) std::swap(a, b);
  return (uint64_t{1} << (2 * kIdBits)) | (a << kIdBits) | b;
}

int64_t RowsFor(const RoutingShape& shape, const ProfileLimits& limits) {
  const int64_t rows = limits.max_bytes / shape.num_layers / CountTable::BytesPerRow(shape.num_experts);
  return std::clamp(rows, kMinRows, kMaxRows);
}

}  // namespace

absl::string_view NameOf(Phase phase) { return phase == Phase::kPrefill ? "prefill" : "decode"; }
absl::string_view NameOf(ContextKind kind) {
  constexpr absl::string_view kNames[] = {"path", "token", "predicted"};
  return kNames[static_cast<size_t>(kind)];
}

int ChoicesFor(const RoutingShape& shape, const ProfileLimits& limits) {
  const int64_t sets = int64_t{shape.num_experts} * (shape.num_experts - 1) / 2;
  return shape.top_k > 1 && RowsFor(shape, limits) >= 16 * sets ? 2 : 1;
}

absl::Status CheckProfile(const ProfileIdentity& identity, const ProfileLimits& limits) {
  const bool is_path = identity.context == ContextKind::kPath, is_token = identity.context == ContextKind::kToken;
  RETURN_IF_ERROR(CheckIn("length of model", 0, kMaxModelBytes, static_cast<int64_t>(identity.model.size())));
  const bool is_predicted = identity.context == ContextKind::kPredicted;
  RETURN_IF_ERROR(CheckIn("length of channel", is_predicted ? 1 : 0, is_predicted ? kMaxModelBytes : 0,
                          static_cast<int64_t>(identity.channel.size())));
  RETURN_IF_ERROR(CheckIn("num_layers", 1, kMaxLayers, identity.shape.num_layers));
  RETURN_IF_ERROR(CheckIn("num_experts", 1, kMaxExperts, identity.shape.num_experts));
  RETURN_IF_ERROR(CheckIn("top_k", 1, std::min<int64_t>(kMaxTopK, identity.shape.num_experts), identity.shape.top_k));
  RETURN_IF_ERROR(CheckIn("phase", 0, 1, static_cast<int64_t>(identity.phase)));
  RETURN_IF_ERROR(CheckIn("context", 0, 2, static_cast<int64_t>(identity.context)));
  RETURN_IF_ERROR(CheckIn("path_length", 1, is_token ? 1 : kMaxPathLength, identity.path_length));
  RETURN_IF_ERROR(CheckIn("num_choices", 1, is_path ? 2 : 1, identity.num_choices));
  const int64_t least_bytes =
      kMinRows * identity.shape.num_layers * CountTable::BytesPerRow(identity.shape.num_experts);
  RETURN_IF_ERROR(CheckIn("max_bytes", least_bytes, int64_t{1} << 50, limits.max_bytes));
  return CheckIn("halve_after_tokens", 0, int64_t{1} << 50, limits.halve_after_tokens);
}

absl::Status CheckSameProfile(const ProfileIdentity& expected, const ProfileIdentity& actual) {
  const auto check = [](absl::string_view field, const auto& wanted, const auto& is) {
    if (wanted == is) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("path profile: ", field, " is ", is, ", this model's profile has ", wanted));
  };
  const RoutingShape &a = expected.shape, &b = actual.shape;
  RETURN_IF_ERROR(check("model", expected.model, actual.model));
  RETURN_IF_ERROR(check("num_layers", a.num_layers, b.num_layers));
  RETURN_IF_ERROR(check("num_experts", a.num_experts, b.num_experts));
  RETURN_IF_ERROR(check("top_k", a.top_k, b.top_k));
  RETURN_IF_ERROR(check("phase", NameOf(expected.phase), NameOf(actual.phase)));
  RETURN_IF_ERROR(check("context", NameOf(expected.context), NameOf(actual.context)));
  RETURN_IF_ERROR(check("channel", expected.channel, actual.channel));
  RETURN_IF_ERROR(check("path_length", expected.path_length, actual.path_length));
  return check("num_choices", expected.num_choices, actual.num_choices);
}

PathProfile::PathProfile(ProfileIdentity identity, ProfileLimits limits)
    : identity_(std::move(identity)), limits_(limits) {
  SY_CHECK_OK(CheckProfile(identity_, limits_));
  const auto layers = static_cast<size_t>(identity_.shape.num_layers);
  tables_.assign(layers, CountTable(identity_.shape.num_experts, RowsFor(identity_.shape, limits_)));
  marginal_.assign(layers, std::vector<int64_t>(static_cast<size_t>(identity_.shape.num_experts)));
  tokens_.assign(layers, 0);
}

int PathProfile::LongestOf(const Context& context) const {
  switch (identity_.context) {
    case ContextKind::kPath:
      return std::min(identity_.path_length, context.layer);
    case ContextKind::kToken:
      return 1;
    case ContextKind::kPredicted:
      return std::min(identity_.path_length, static_cast<int>(context.predicted.size()));
  }
  return 0;
}

ContextKey PathProfile::KeyOf(const Context& context, int length) const {
  if (identity_.context == ContextKind::kToken)
    return {.high = 0, .low = static_cast<uint32_t>(context.batch.token_ids[context.t])};
  ContextKey key;
  for (int i = 0; i < length; ++i) {
    const uint64_t element =
        identity_.context == ContextKind::kPath
            ? ElementOf(context.batch.Experts(context.t, context.layer - 1 - i), identity_.num_choices)
            : ElementOf(context.predicted.subspan(static_cast<size_t>(i), 1), 1);
    uint64_t& word = i < kElementsPerWord ? key.low : key.high;
    word |= element << (kElementBits * (i % kElementsPerWord));
  }
  return key;
}

void PathProfile::Observe(const RoutingView& batch, int layer, absl::Span<const int16_t> predicted) {
  SY_CHECK(batch.shape == identity_.shape);
  if (batch.num_tokens == 0) return;
  SY_CHECK(identity_.context != ContextKind::kToken || batch.token_ids != nullptr);
  const auto l = static_cast<size_t>(layer);
  const size_t width = predicted.size() / static_cast<size_t>(batch.num_tokens);
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    const absl::Span<const int16_t> experts = batch.Experts(t, layer);
    for (const int16_t expert : experts)
      if (expert >= 0) ++marginal_[l][static_cast<size_t>(expert)];
    const Context context{batch, t, layer, predicted.subspan(static_cast<size_t>(t) * width, width)};
    for (int length = 1; length <= LongestOf(context); ++length) tables_[l].Add(KeyOf(context, length), experts);
    ++tokens_[l];
    if (limits_.halve_after_tokens == 0 || tokens_[l] < limits_.halve_after_tokens) continue;
    tables_[l].Halve();
    for (int64_t& count : marginal_[l]) count /= 2;
    tokens_[l] = 0;
  }
}

int32_t PathProfile::FindRow(const RoutingView& batch, int64_t t, int layer, int max_length, int min_tokens,
                             absl::Span<const int16_t> predicted) const {
  const CountTable& table = tables_[static_cast<size_t>(layer)];
  const auto min_total = static_cast<uint32_t>(min_tokens) * static_cast<uint32_t>(identity_.shape.top_k);
  const Context context{batch, t, layer, predicted};
  for (int length = std::min(max_length, LongestOf(context)); length > 0; --length) {
    const int32_t row = table.Find(KeyOf(context, length));
    if (row != CountTable::kNoRow && table.total(row) >= min_total) return row;
  }
  return kMarginal;
}

bool PathProfile::SharesOf(int layer, int32_t row, absl::Span<int64_t> share) const {
  const auto l = static_cast<size_t>(layer);
  if (row != kMarginal) {
    // A row's total is below 2^26 and a count below 2^16: one division a row is exact to 2^-20.
    const uint64_t inverse = (uint64_t{1} << 46) / tables_[l].total(row);
    const absl::Span<const uint16_t> counts = tables_[l].counts(row);
    for (size_t e = 0; e < counts.size(); ++e) share[e] = static_cast<int64_t>((counts[e] * inverse) >> 26);
    return true;
  }
  const int64_t total = TotalOf(marginal_[l]);
  if (total == 0) return false;
  for (size_t e = 0; e < share.size(); ++e)
    share[e] = static_cast<int64_t>(static_cast<__int128>(marginal_[l][e]) * kRow / total);
  return true;
}

absl::Span<const int64_t> PathProfile::MarginalCounts(int layer) const { return marginal_[static_cast<size_t>(layer)]; }

absl::Status PathProfile::CheckMerge(const PathProfile& other) const {
  RETURN_IF_ERROR(CheckSameProfile(identity_, other.identity_));
  for (size_t l = 0; l < tables_.size(); ++l) {
    RETURN_IF_ERROR(CheckIn("sum of tokens", 0, kMaxMarginal, tokens_[l] + other.tokens_[l]));
    for (size_t e = 0; e < marginal_[l].size(); ++e)
      RETURN_IF_ERROR(CheckIn("sum of marginal counts", 0, kMaxMarginal, marginal_[l][e] + other.marginal_[l][e]));
  }
  return absl::OkStatus();
}

absl::Status PathProfile::Merge(const PathProfile& other) {
  RETURN_IF_ERROR(CheckMerge(other));
  for (size_t l = 0; l < tables_.size(); ++l) {
    tables_[l].Merge(other.tables_[l]);
    for (size_t e = 0; e < marginal_[l].size(); ++e) marginal_[l][e] += other.marginal_[l][e];
    tokens_[l] += other.tokens_[l];
  }
  return absl::OkStatus();
}

}  // namespace switchyard::popularity
