// Arguments of the CPU kernels of the backward pass.  The table in kernels.h names the kernels; its rules apply.
//
// Internal to workers/ops.
#pragma once

#include <cstdint>

namespace switchyard::ops {

// Rows in memory, `stride` elements apart.
struct KernelRows {
  void* at;
  int64_t stride;
};

// Rows in the model's dtype or, if `acc`, in its AccDType.
struct MixedRows {
  void* at;
  int64_t stride;
  bool acc;
};

struct SwiGluBackwardArgs {
  uint8_t dtype;
  KernelRows sums;     // [T, 2F]
  KernelRows dhidden;  // [T, F]
  KernelRows dsums;    // [T, 2F]
  int64_t width;
};

struct RowScaleBackwardArgs {
  uint8_t dtype;
  KernelRows x;        // [M, F]
  KernelRows weight;   // [M, 1] AccDType
  KernelRows dy;       // [M, F] in, weight * dy out
  KernelRows y;        // [M, F]
  KernelRows dweight;  // [M, 1] AccDType
  int64_t width;
};

// RMSNorm, and LayerNorm with one group.
struct NormBackwardArgs {
  uint8_t dtype;
  MixedRows x, dy, dx;    // [T, H]; dx is written
  const void* gamma;      // [width]
  int64_t groups, width;  // H = groups * width
  double eps;
  bool accumulate;
};

struct GeluBackwardArgs {
  uint8_t dtype;
  bool tanh;
  KernelRows x, dy, dx;  // [T, F]
  int64_t width;
};

// Rows of one expert.
struct ExpertBiasBackwardArgs {
  uint8_t dtype;
  KernelRows d;                // [T, H]
  const int32_t* rows;         // of all experts, or null
  const void* bias;            // [H]
  KernelRows weight, dweight;  // [rows, 1] AccDType
  int64_t width;
};

struct RouterBackwardArgs {
  uint8_t dtype;            // of dlogits; acc: what that accumulates in
  KernelRows logits;        // [T, E] acc
  KernelRows topk_idx;      // [T, K] int32
  KernelRows dtopk_weight;  // [T, K] acc
  const double* dprob;      // [E] or null
  KernelRows dlogits;       // [T, E] dtype
  int64_t experts, top_k;
  bool renormalize;
  double z_scale;
};

struct RouterSumsArgs {
  uint8_t dtype;
  KernelRows logits;  // [T, E]
  int64_t experts;
};

struct ColumnSumArgs {
  uint8_t dtype;
  KernelRows x;  // [T, width]
  int64_t width;
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
  KernelRows x, dx;  // x: the clamp's input
  int64_t width;
  double limit;
};

// Dropout of probabilities (dropout/counter_random.h); in forward, too.
struct AttentionDropout {
  const uint64_t* row_keys = nullptr;  // of each query; null: none is dropped
  int64_t layer, first_head;
  uint64_t threshold;
  double scale;  // of those that are kept
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
  AttentionDropout dropout;
  void* scratch;                    // AttentionBackwardScratchBytes(rows, head_dim), 64-byte aligned
  void (*yield)(const void* pool);  // called with `pool` every few milliseconds
  const void* pool;
};
int64_t AttentionBackwardScratchBytes(int64_t rows, int64_t head_dim);

struct EmbedBackwardArgs {
  uint8_t dtype;
  const int32_t* tokens;  // [T]
  KernelRows d;           // [T, H]
  KernelRows gradient;    // [V, H]
  int64_t num_tokens;
};

struct CrossEntropyArgs {
  uint8_t dtype;           // of dlogits; acc: what that accumulates in
  KernelRows logits;       // [n, V] acc
  const int32_t* targets;  // [n]
  KernelRows dlogits;      // [n, V] dtype; at == null: not wanted
  double* losses;          // [n]
  int64_t vocab;
  double scale;
};

struct AdamWArgs {
  uint8_t dtype;
  void *parameter, *m, *v;
  const void* gradient;
  double gradient_scale, decay, beta1, beta2, eps, step_size, root_correction;
};

}  // namespace switchyard::ops
