// The table of this room's CPU kernels, one per instruction set, and their arguments.
//
// Internal to workers/ops: op.cc files check and split the work over threads, then call through CpuKernels().  Kernel
// files (*_cpu.cc) include nothing but this and simd.h (which says why), so arguments are plain: raw pointers, strides
// in elements, dtypes as the value of DType.  A kernel computes rows [begin, end) and reads no others.
#pragma once

#include <cstdint>

#include "workers/ops/core/backward_args.h"

namespace switchyard::ops {

struct RmsNormArgs {
  uint8_t x_dtype, dtype;
  const void* x;      // [T, H]
  const void* gamma;  // [width]
  void* y;            // [T, H]
  int64_t x_stride, y_stride;
  int64_t groups, width;  // H = groups * width
  double eps;
  bool rounds_once = false;  // y = gamma · x·scale, not rounded between
};

struct LayerNormArgs {
  uint8_t x_dtype, dtype;
  KernelRows x;  // [T, H]
  const void *gamma, *beta;
  KernelRows y;  // [T, H]
  int64_t width;
  double eps;
};

struct RopeArgs {
  uint8_t dtype;
  const void* cos;  // [table rows, half] AccDType
  const void* sin;
  const int32_t* table_rows;  // [T]
  void* x;                    // [T, heads * head_dim]
  int64_t x_stride, heads, head_dim, half;
};

struct EmbedArgs {
  uint8_t dtype;
  const void* table;      // [V, H]
  const int32_t* tokens;  // [T]
  void* residual;         // [T, H] AccDType
  int64_t table_stride, residual_stride, width;
  bool accumulate;  // residual += instead of =
};

struct GeluArgs {
  uint8_t dtype;
  bool tanh;
  KernelRows x, y;
  int64_t width;
};

struct ClampArgs {
  uint8_t dtype;
  void* x;
  int64_t x_stride, width;
  double limit;
};

struct CombineArgs {
  uint8_t dtype;
  const void* y;            // [rows, H]
  const int32_t* slot_row;  // [T, K]
  const void* weight;       // [T, K] AccDType, or null: all are 1
  const void* shared;       // [T, H] or null
  const void* shared_gate;  // [T, 1] AccDType or null
  void* residual;           // [T, H] AccDType; null: the sum goes to `out` instead
  void* out;                // [T, H], null but on the CPU
  int64_t y_stride, weight_stride, shared_stride, gate_stride, residual_stride, out_stride;
  int64_t top_k, width;
};

struct RouterArgs {
  uint8_t dtype;
  const void* logits;  // [T, E]
  int32_t* topk_idx;   // [T, K]
  void* topk_weight;   // [T, K]
  int64_t logits_stride, idx_stride, weight_stride;
  int64_t experts, top_k;
  bool renormalize;
};

// One task of attention: query rows of one sequence and one kv head.  Row r of the task is query r / group, head
// r % group of the kv head's group; its position is first_pos + r / group.
struct AttentionTask {
  uint8_t dtype;
  const void* q;  // the first query's first head
  void* out;      // likewise
  int64_t q_stride, out_stride;
  int64_t queries, group, head_dim;
  int64_t first_pos, window;  // window 0 = none
  double scale;
  const void* sinks = nullptr;  // [group] Acc: scores of each head that only the denominator has; null: none
  AttentionDropout dropout;     // of the first query and head on
  const void* k;                // of this kv head in block 0
  const void* v;
  int64_t block_stride, block_size;  // the first in elements of the cache
  uint8_t kv_format = 0;             // KvFormat; not 0: k and v are bytes, dtype is not fp64
  const int32_t* block_table;
  void* scratch;  // AttentionScratchBytes(queries * group, head_dim), 64-byte aligned
};
inline constexpr int64_t kAttentionTaskRows = 64;  // queries * group of a task, if it can be chosen
int64_t AttentionScratchBytes(int64_t rows, int64_t head_dim);

struct LogitStats {
  double max;   // -Inf if there is nothing else
  bool broken;  // a NaN or +Inf, or nothing finite
};

template <class Args>
using RowKernel = void (*)(const Args& args, int64_t begin, int64_t end);
// A kernel that also writes sums over its rows: `sums` are `width` accumulators.
template <class Args>
using SumKernel = void (*)(const Args& args, int64_t begin, int64_t end, void* sums);

struct KernelTable {
  RowKernel<RmsNormArgs> rms_norm;
  RowKernel<LayerNormArgs> layer_norm;
  RowKernel<RopeArgs> rope;
  RowKernel<RopeArgs> rope_backward;  // by the negative angle
  RowKernel<EmbedArgs> embed;
  RowKernel<GeluArgs> gelu;
  RowKernel<ClampArgs> clamp;
  RowKernel<CombineArgs> combine;
  RowKernel<RouterArgs> router;
  void (*attention)(const AttentionTask& task);
  void (*attention_bf16)(const AttentionTask& task);  // for tasks of bf16: tile products where there are any
  // For sampling from fp32 or fp64 logits x[0, n).
  LogitStats (*logit_stats)(uint8_t dtype, const void* x, int64_t n);
  // The sum of e^((x - max) * scale); weights, if not null, gets the terms in x's dtype.
  double (*exp_sum)(uint8_t dtype, const void* x, int64_t n, double max, double scale, void* weights);

  RowKernel<SwiGluBackwardArgs> swiglu_backward;
  RowKernel<RowScaleBackwardArgs> row_scale_backward;
  SumKernel<NormBackwardArgs> rms_norm_backward;  // sums: dgamma, or null
  SumKernel<NormBackwardArgs> layer_norm_backward;
  RowKernel<GeluBackwardArgs> gelu_backward;
  SumKernel<ExpertBiasBackwardArgs> expert_bias_backward;
  // scratch: 2 * experts accumulators.
  void (*router_backward)(const RouterBackwardArgs& args, int64_t begin, int64_t end, void* scratch);
  // sums: [experts + 1] doubles: probabilities, then squared logsumexp.
  SumKernel<RouterSumsArgs> router_sums;
  SumKernel<ColumnSumArgs> column_sums;
  RowKernel<AddPartialsArgs> add_partials;  // columns [begin, end)
  RowKernel<ClampBackwardArgs> clamp_backward;
  void (*attention_backward)(const AttentionBackwardTask& task);
  RowKernel<EmbedBackwardArgs> embed_backward;  // columns [begin, end) of all rows
  RowKernel<CrossEntropyArgs> cross_entropy;
  RowKernel<AdamWArgs> adamw;
  double (*sum_of_squares)(uint8_t dtype, const void* x, int64_t n);
};

// The table for CurrentIsa() (isa.h).  Thread-safe.
const KernelTable& CpuKernels();

// For tests: makes CpuKernels() return the table of this level.  REQUIRES: isa <= DetectedIsa(); no op is running.
enum class Isa : uint8_t;
void UseKernelsForTest(Isa isa);

}  // namespace switchyard::ops
