// Rotary position embedding, layout "half" (NeoX, HF's rotate_half): with d = rotary_dim, dims j and j + d/2 of a head
// are a pair, rotated by position · inv_freq[j]; dims from d on stay as they are.
//
// RopeTable holds cos and sin for every position of the context, already multiplied by the attention factor.  For fp32
// (and bf16, fp16) it rounds where HF rounds: inv_freq to fp32, the angle to fp32, then cos and sin; for fp64 all is
// double.  Immutable after Build, so thread-safe.
//
// longrope has two lists of factors.  HF chooses in every forward pass, by the largest position in it: long factors
// when that is at or behind original_max_positions.  Its generate runs the prompt in one pass and keeps cached keys, so
// a prompt longer than original_max_positions is rotated by the long factors as a whole; any other sequence by the
// short ones below original_max_positions and by the long ones from there on.  The table holds the rows of both kinds
// of sequences, and RowOf chooses by prompt and position alone: rows stay batch-invariant.  Keys of the two kinds
// differ: prefix reuse must keep them apart (long_above).
//
// Does not do: interleaved pairs (DeepSeek); scalings that change while a sequence grows ("dynamic").
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

enum class RopeKind : uint8_t { kDefault, kLinear, kYarn, kLongRope, kLlama3 };

// Names and defaults of HF's rope_parameters; a kind ignores those that it does not use.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  int64_t rotary_dim = 0;                       // d: head_dim · partial_rotary_factor; even, > 0
  double factor = 1.0;                          // linear, yarn, longrope (max_positions / original), llama3
  double original_max_positions = 0;            // yarn, longrope, llama3
  std::optional<double> attention_factor = {};  // yarn, longrope: absent = by formula
  double beta_fast = 32.0;                      // yarn
  double beta_slow = 1.0;                       // yarn
  bool truncate = true;                         // yarn
  double mscale = 0;                            // yarn: 0 = absent
  double mscale_all_dim = 0;                    // yarn: 0 = absent
  double low_freq_factor = 1.0;                 // llama3
  double high_freq_factor = 4.0;                // llama3
  std::vector<double> short_factor = {};        // longrope: [d/2]
  std::vector<double> long_factor = {};         // longrope: [d/2]
  bool use_long_factors = false;                // longrope: of ComputeRopeFrequencies; RopeTable holds both

  // longrope, in a context of max_positions: prompts of more tokens than this take the long factors throughout.
  // 0 = none does: the context is not that long, or this is another kind.
  int64_t LongAbove(int64_t max_positions) const;
};

// Angles are position · inv_freq[j]; cos and sin are multiplied by attention_factor.
struct RopeFrequencies {
  std::vector<double> inv_freq;  // [d/2]
  double attention_factor = 1.0;
};
// acc: kF32 rounds theta^(2j/d) and its inverse to fp32 as HF does; kF64 rounds nothing.
// Errors (InvalidArgument): rotary_dim odd or not positive, theta or factors not positive, factor lists not [d/2].
absl::StatusOr<RopeFrequencies> ComputeRopeFrequencies(const RopeConfig& config, DType acc);

class RopeTable {
 public:
  // acc: kF32 or kF64, AccDType of the model's dtype.  Ignores config.use_long_factors.
  // Errors: as ComputeRopeFrequencies; max_positions < 1.
  static absl::StatusOr<RopeTable> Build(const RopeConfig& config, int64_t max_positions, DType acc);

  // For a model without rotation: rotary_dim() is 0, rows are positions.  REQUIRES: max_positions >= 1.
  static RopeTable WithoutRotation(int64_t max_positions, DType acc);

  // Moves the table to the stream's device.  Errors: the device's.
  absl::Status MoveTo(const Stream& stream);

  // The row that rotates `position` of a sequence with a prompt of num_prompt_tokens: the position itself unless the
  // prompt is a long one.  REQUIRES: 0 <= position < max_positions().
  int32_t RowOf(int32_t position, int64_t num_prompt_tokens) const {
    const bool other = position < long_above_ && num_prompt_tokens > long_above_;
    return other ? static_cast<int32_t>(max_positions_) + position : position;
  }

  // [max_positions + long_above, d/2] acc: every position for prompts that are not long, then [0, long_above) for those
  // that are.
  const TensorView& cos() const { return cos_.view(); }
  const TensorView& sin() const { return sin_.view(); }
  int64_t num_rows() const { return cos_.dim(0); }
  int64_t max_positions() const { return max_positions_; }
  int64_t long_above() const { return long_above_; }  // RopeConfig::LongAbove
  int64_t rotary_dim() const { return 2 * cos_.dim(1); }

 private:
  int64_t max_positions_ = 0;
  int64_t long_above_ = 0;
  Tensor cos_, sin_;
};

// Rotates every head of every row in place.
// Errors (InvalidArgument): shapes or dtypes that do not fit; a row outside the table, with its token.
absl::Status ApplyRope(const Stream& stream, const RopeTable& table, int64_t head_dim,
                       const IntView& table_rows,  // [T] of RowOf
                       const TensorView& x);       // [T, N*D] (or Nkv*D) model dtype; rows may be strided

// The backward pass of ApplyRope, in place: turns every pair by the negative angle, with the same attention factor.
// CPU only so far.  Errors: as ApplyRope's.
absl::Status ApplyRopeBackward(const Stream& stream, const RopeTable& table, int64_t head_dim,
                               const IntView& table_rows, const TensorView& dx);

}  // namespace switchyard::ops
