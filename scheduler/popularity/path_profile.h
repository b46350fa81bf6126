// PathProfile: per layer the counts of the experts that tokens chose, given the experts that they had
// chosen in the last l layers (Lina, section 5.2: a sample path), or their token id, or the l first experts that were
// predicted of them.
//
// A profile is one phase's, as prefill and decode route differently.  The same code counts while serving and offline.
// Back-off: where a path was seen less than `min_tokens` times the path one layer shorter is asked, down to the path of
// length 0, which is the marginal.  Every length has its own rows.
// An element of a path is the set of a token's first two choices (num_choices = 2) or its first choice (1; ChoicesFor
// says when; README.md has the figures).
// Bounded: `max_bytes` over all layers (CountTable says what goes first).  A layer's counts are halved after each
// `halve_after_tokens` tokens, so that old traffic fades at fixed counts, not by a clock.  Merge is associative and
// commutative as long as nothing is evicted, no count reaches 2^16 and no decay falls due.
// Deterministic, integers only.  Thread-compatible.  Knows no files (bytes: path_profile_format.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/popularity/count_table.h"
#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard::popularity {

enum class Phase : uint8_t { kPrefill, kDecode };
inline constexpr Phase kPhases[] = {Phase::kPrefill, Phase::kDecode};
absl::string_view NameOf(Phase phase);  // "prefill", "decode"

enum class ContextKind : uint8_t { kPath, kToken, kPredicted };
absl::string_view NameOf(ContextKind kind);  // "path", "token", "predicted"

inline constexpr int kMaxPathLength = 6;
// The most that a profile counts in a layer: sums of several stay far from overflow.
inline constexpr int64_t kMaxMarginal = int64_t{1} << 48;

// The identity of a profile; two that differ in any field do not mix.
struct ProfileIdentity {
  std::string model;  // the served weights' hash (ModelInfo); at most kMaxModelBytes
  RoutingShape shape;
  Phase phase = Phase::kPrefill;
  ContextKind context = ContextKind::kPath;
  std::string channel = {};  // of kPredicted: whose predictions ("probe"); else empty
  int path_length = 3;       // l, [1, kMaxPathLength]; of kPredicted how many predicted experts; of kToken 1
  int num_choices = 2;       // choices that make a path's element, 1 or 2; else 1
};
inline constexpr uint32_t kMaxModelBytes = 4096;  // of model, and of channel

struct ProfileLimits {
  int64_t max_bytes = int64_t{64} << 20;             // of rows, over all layers
  int64_t halve_after_tokens = int64_t{256} * 1024;  // 0 = never
};

// num_choices for a profile of paths: 2 where a layer has rows for sixteen times the sets of two experts (16 experts:
// from 1920 rows on, 64: from 32256), else 1, as there the sets crowd out the longer paths.
int ChoicesFor(const RoutingShape& shape, const ProfileLimits& limits);

// InvalidArgument that names the field, its limit and its value.
absl::Status CheckProfile(const ProfileIdentity& identity, const ProfileLimits& limits);
// InvalidArgument that names the first field that differs, what was expected and what the profile has.
absl::Status CheckSameProfile(const ProfileIdentity& expected, const ProfileIdentity& actual);

class PathProfile {
 public:
  static constexpr int32_t kMarginal = -1;

  // REQUIRES: CheckProfile passes.
  PathProfile(ProfileIdentity identity, ProfileLimits limits);

  const ProfileIdentity& identity() const { return identity_; }
  const ProfileLimits& limits() const { return limits_; }
  // Rows that a layer may have.
  int64_t max_rows() const { return tables_.front().max_rows(); }
  int64_t num_rows(int layer) const { return tables_[static_cast<size_t>(layer)].num_rows(); }
  // Tokens counted in the layer since its counts were halved last.
  int64_t num_tokens(int layer) const { return tokens_[static_cast<size_t>(layer)]; }

  // Counts what the batch's tokens chose in `layer`.  Layers may come in any order.
  // predicted [T, M], M >= 1, best first: of kPredicted only.
  // REQUIRES: the same shape; layers <= layer of the batch are known; token ids are, if they are the context.
  void Observe(const RoutingView& batch, int layer, absl::Span<const int16_t> predicted = {});

  // The row that predicts token t's choices in `layer`: of the longest path of at most `max_length` layers that at
  // least `min_tokens` tokens took (of kToken: the token's, if max_length > 0), or kMarginal. predicted [M] of token t:
  // of kPredicted only.  REQUIRES: min_tokens >= 1.
  int32_t FindRow(const RoutingView& batch, int64_t t, int layer, int max_length, int min_tokens,
                  absl::Span<const int16_t> predicted = {}) const;

  // counts [E] of a row; `share` is filled with floor(2^20 * count / total) [E].  False: nothing was ever counted.
  bool SharesOf(int layer, int32_t row, absl::Span<int64_t> share) const;
  // [E] of the whole layer.
  absl::Span<const int64_t> MarginalCounts(int layer) const;

  // Whether Merge can be done and its result read: CheckSameProfile's error, or InvalidArgument with the field, its
  // limit and the sum.
  absl::Status CheckMerge(const PathProfile& other) const;
  // Adds the counts of another worker's profile.  CheckMerge's error, and nothing has changed.
  absl::Status Merge(const PathProfile& other);

  // The same profile gives the same bytes, however it came about:
  //   bytes              what
  //   8                  "SYPROF01"
  //   u32 + bytes        model: length, then that many
  //   u32 + bytes        channel: length, then that many
  //   7 x u32            L, E, K, phase (0 prefill, 1 decode), context (0 path, 1 token, 2 predicted), path_length,
  //                      num_choices
  //   L times:
  //     i64              tokens counted since the last halving
  //     E x i64          marginal counts, >= 0
  //     u32              rows N
  //     N times, by rising (high, low):
  //       u64, u64       key: high, low (path_profile.cc says how a path becomes one)
  //       u16            n, experts with a count, [1, E]
  //       n x (u16, u16) expert, rising; count, >= 1
  //   u64                FNV-1a of all bytes before
  // Little-endian, unaligned.  Limits are not part of it: they are the reader's.
  std::string Serialize() const;
  // InvalidArgument with what is wrong at which byte.  Of more rows than `limits` allows the smallest totals go.
  static absl::StatusOr<PathProfile> Parse(absl::string_view bytes, ProfileLimits limits);

 private:
  // The contexts of a token in a layer, by length: none of length 0.
  struct Context {
    const RoutingView& batch;
    int64_t t;
    int layer;
    absl::Span<const int16_t> predicted;  // [M]
  };
  ContextKey KeyOf(const Context& context, int length) const;
  int LongestOf(const Context& context) const;

  ProfileIdentity identity_;
  ProfileLimits limits_;
  std::vector<CountTable> tables_;              // [L]
  std::vector<std::vector<int64_t>> marginal_;  // [L][E]
  std::vector<int64_t> tokens_;                 // [L]
};

}  // namespace switchyard::popularity
