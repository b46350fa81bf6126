// The table of the CPU kernels of the way back, one per instruction set, with the rules of kernels.h.
//
// Internal to workers/ops.  A kernel handles rows [begin, end) and never looks at others.
#pragma once

#include <cstdint>

#include "workers/ops/core/kernels.h"

namespace switchyard::ops {

struct SwiGluBackwardArgs {
  uint8_t dtype;
  const void* sums;     // [T, 2F]
  const void* dhidden;  // [T, F]
  void* dsums;          // [T, 2F]
  int64_t sums_stride, dhidden_stride, dsums_stride, width;
};

struct RowScaleBackwardArgs {
  uint8_t dtype;
  const void* x;       // [M, F]
  const void* weight;  // [M, 1] AccDType, and so dweight
  void* dy;            // [M, F] in, weight * dy out
  void* y;             // [M, F]
  void* dweight;
  int64_t x_stride, weight_stride, dy_stride, y_stride, dweight_stride, width;
};

// Which dtype something has: the model's, or what that accumulates in.
struct MixedPointer {
  const void* at;
  bool acc;
};

struct RmsNormBackwardArgs {
  uint8_t dtype;
  MixedPointer x, dy, dx;  // [T, H]; dx is written
  const void* gamma;       // [width]
  int64_t x_stride, dy_stride, dx_stride;
  int64_t groups, width;  // H = groups * width
  double eps;
  bool accumulate;
};

struct LayerNormBackwardArgs {
  uint8_t dtype;
  MixedPointer x, dy, dx;  // [T, H]; dx is written
  const void* gamma;       // [H]
  int64_t x_stride, dy_stride, dx_stride, width;
  double eps;
  bool accumulate;
};

struct GeluBackwardArgs {
  uint8_t dtype;
  bool tanh;
  const void *x, *dy;  // [T, F]
  void* dx;
  int64_t x_stride, dy_stride, dx_stride, width;
};

// Of one expert's rows.
struct ExpertBiasBackwardArgs {
  uint8_t dtype;
  const void* d;        // [T, H]
  const int32_t* rows;  // of all experts, or null
  const void* bias;     // [H]
  const void* weight;   // [rows, 1] AccDType, and so dweight
  void* dweight;
  int64_t d_stride, weight_stride, dweight_stride, width;
};

struct RouterBackwardArgs {
  uint8_t dtype;             // of dlogits; acc: what that accumulates in
  const void* logits;        // [T, E] acc
  const int32_t* topk_idx;   // [T, K]
  const void* dtopk_weight;  // [T, K] acc
  const double* dprob;       // [E] or null
  void* dlogits;             // [T, E] dtype
  int64_t logits_stride, idx_stride, dweight_stride, dlogits_stride;
  int64_t experts, top_k;
  bool renormalize;
  double z_scale;
};

struct RouterSumsArgs {
  uint8_t dtype;
  const void* logits;  // [T, E]
  int64_t logits_stride, experts;
};

struct ColumnSumArgs {
  uint8_t dtype;
  const void* x;  // [T, width]
  int64_t x_stride, width;
};

// to[j] += partials[0][j] + … + partials[count - 1][j], in this order.
struct AddPartialsArgs {
  uint8_t dtype;
  const void* partials;  // [count, width]
  void* to;              // [width]
  int64_t count, width;
};

struct ClampBackwardArgs {
  uint8_t dtype;
  const void* x;  // what was clamped
  void* dx;
  int64_t x_stride, dx_stride, width;
  double limit;
};

// One sequence and one kv head, for all query heads of its group.  Pointers are to the sequence's first row and to the
// first column of the head (of the group's first head).
struct AttentionBackwardTask {
  uint8_t dtype;
  const void *q, *k, *v, *attended, *dattended;
  void *dq, *dk, *dv;
  int64_t qkv_stride, attended_stride, dattended_stride, dqkv_stride;
  int64_t rows, group, head_dim, window;  // window 0 = none
  double scale;
  void* scratch;                    // AttentionBackwardScratchBytes(rows, head_dim), 64-byte aligned
  void (*yield)(const void* pool);  // called with `pool` every few milliseconds
  const void* pool;
};
int64_t AttentionBackwardScratchBytes(int64_t rows, int64_t head_dim);

struct EmbedBackwardArgs {
  uint8_t dtype;
  const int32_t* tokens;  // [T]
  const void* d;          // [T, H]
  void* gradient;         // [V, H]
  int64_t num_tokens, d_stride, gradient_stride;
};

struct CrossEntropyArgs {
  uint8_t dtype;           // of dlogits; acc: what that accumulates in
  const void* logits;      // [n, V] acc
  const int32_t* targets;  // [n]
  void* dlogits;           // [n, V] dtype or null
  double* losses;          // [n]
  int64_t logits_stride, dlogits_stride, vocab;
  double scale;
};

struct AdamWArgs {
  uint8_t dtype;
  void *parameter, *m, *v;
  const void* gradient;
  double gradient_scale, decay, beta1, beta2, eps, step_size, root_correction;
};

struct BackwardKernelTable {
  void (*swiglu)(const SwiGluBackwardArgs& args, int64_t begin, int64_t end);
  void (*row_scale)(const RowScaleBackwardArgs& args, int64_t begin, int64_t end);
  // dgamma: [width] accumulators, written with the sum over these rows; or null.
  void (*rms_norm)(const RmsNormBackwardArgs& args, int64_t begin, int64_t end, void* dgamma);
  // dgamma: [width] accumulators, written with the sum over these rows.
  void (*layer_norm)(const LayerNormBackwardArgs& args, int64_t begin, int64_t end, void* dgamma);
  void (*gelu)(const GeluBackwardArgs& args, int64_t begin, int64_t end);
  // sums: [width] accumulators, written.
  void (*expert_bias)(const ExpertBiasBackwardArgs& args, int64_t begin, int64_t end, void* sums);
  // scratch: 2 * experts accumulators.
  void (*router)(const RouterBackwardArgs& args, int64_t begin, int64_t end, void* scratch);
  // sums: [experts + 1], written: probabilities, then squared logsumexp.
  void (*router_sums)(const RouterSumsArgs& args, int64_t begin, int64_t end, double* sums);
  void (*column_sums)(const ColumnSumArgs& args, int64_t begin, int64_t end, void* sums);
  // Columns [begin, end).
  void (*add_partials)(const AddPartialsArgs& args, int64_t begin, int64_t end);
  void (*clamp)(const ClampBackwardArgs& args, int64_t begin, int64_t end);
  void (*rope)(const RopeArgs& args, int64_t begin, int64_t end);  // by the negative angle
  void (*attention)(const AttentionBackwardTask& task);
  // Columns [begin, end) of all rows.
  void (*embed)(const EmbedBackwardArgs& args, int64_t begin, int64_t end);
  void (*cross_entropy)(const CrossEntropyArgs& args, int64_t begin, int64_t end);
  void (*adamw)(const AdamWArgs& args, int64_t begin, int64_t end);
  double (*sum_of_squares)(uint8_t dtype, const void* x, int64_t n);
};

// The table of the level that CpuKernels() has.  Thread-safe.
const BackwardKernelTable& BackwardKernels();

}  // namespace switchyard::ops
