// The table of this room's CUDA kernels and their arguments.
//
// Internal to workers/ops: op.cc files check, then call through CudaKernels().  Plain types only, for nvcc: raw
// pointers, strides in elements, dtypes as the value of DType.  Arguments of kernels.h serve here, too, with pointers
// to device memory.  An entry enqueues its work on the call's stream and returns the runtime's error (a cudaError_t; 0
// = enqueued).  It neither blocks nor allocates nor reads device memory from the host, so a graph can capture all of
// it: bounds that the host knows size the launches, true counts are read on the device.  Calls on one stream share one
// workspace.
#pragma once

#include <cstdint>

#include "workers/ops/core/kernels.h"
#include "workers/ops/exchange/row_exchange_args.h"

namespace switchyard::ops {

// Values of DType (gemm_choice_cuda.cc checks that they are), and an element's bytes.
inline constexpr uint8_t kCudaF32 = 0, kCudaF64 = 1, kCudaBf16 = 2, kCudaF16 = 3;
constexpr int64_t CudaElemBytes(uint8_t dtype) { return dtype == kCudaF64 ? 8 : dtype == kCudaF32 ? 4 : 2; }
// Values of WeightFormat (likewise).
inline constexpr uint8_t kCudaPlainRows = 0, kCudaInt8 = 1, kCudaInt4 = 2, kCudaQ8_0 = 3, kCudaQ4_0 = 4, kCudaQ4_1 = 5,
                         kCudaMxfp4 = 6, kCudaQ6_K = 7;

struct CudaCall {
  void* stream = nullptr;  // cudaStream_t
  int device = 0;
  int num_sms = 0;
  bool deterministic = false;  // rows are batch-invariant: GEMMs of one fixed kind
  void* workspace = nullptr;   // device memory, kCudaWorkspaceBytes, 256-byte aligned; contents do not last
};
inline constexpr int64_t kCudaWorkspaceBytes = int64_t{96} << 20;

// RouteTopK; rows from *num_rows on, a graph's padding, choose no expert (idx -1, weight 0).
struct CudaRouterArgs {
  RouterArgs router;
  const int32_t* num_rows;     // device; null = all rows count
  const void* bias = nullptr;  // [E] dtype of logits, of the choice alone; null = none
};

// BuildExpertOrder: a stable sort of (t, k) by expert.
struct ExpertOrderArgs {
  const int32_t* topk_idx;  // [T, K] contiguous, -1 = dropped
  int64_t rows, top_k, experts;
  int32_t* offsets;   // [E + 1]
  int32_t* token;     // [T * K] of the sorted rows; entries from offsets[E] on are left as they are
  int32_t* slot_row;  // [T * K] where (t, k) went; -1 = dropped
};

// counts[e] += how many of topk_idx are e.
struct CountExpertsArgs {
  const int32_t* topk_idx;  // [n], -1 = dropped
  int64_t n, experts;
  int32_t* counts;  // [E]
};

// y[i] = x[rows[i]], rows of row_bytes bytes (a multiple of 2).
struct GatherArgs {
  const void* x;
  const int32_t* rows;  // [count]
  void* y;
  int64_t count, row_bytes, x_stride_bytes, y_stride_bytes;
  bool keep_absent;  // index -1 leaves y's row as it is; else it gives zeros
};

// y = x · wᵀ, y += x · wᵀ, + bias; or y = silu(x · gateᵀ) * (x · upᵀ), or as GluClamp says.  Sums in AccDType (no
// TF32). Grouped, it is that per expert: rows [offsets[e], offsets[e + 1]) take weights[e].  A dense product is a
// grouped one with one expert, which has all rows.
struct CudaGemmArgs {
  uint8_t dtype;               // of x, bias, and weights if plain
  uint8_t y_dtype;             // dtype or its AccDType
  const void* x;               // [T or rows, K], rows x_stride apart
  const int32_t* x_rows;       // [rows], device, or null: row i of x
  const void* const* weights;  // [experts], a device array of device pointers; null: `weight` for all
  const void* weight;  // [N, K], rows w_stride apart (a multiple of 16 bytes); gated: gate [0, N/2), up [N/2, N)
  // Others than kCudaPlainRows: weights are panels of few bits (weight.h), w_stride is not used, x is bf16 or fp16.
  uint8_t format = kCudaPlainRows;
  const int32_t* offsets;  // [experts + 1], device; null: one expert has all rows
  const void* bias;        // [N] or null; never with gated
  void* y;                 // [rows, N]; gated: [rows, N/2]; rows from offsets[experts] on are left alone
  int64_t rows;            // with offsets: a bound that the host knows
  int64_t n, k, x_stride, w_stride, y_stride;
  int32_t experts;
  bool accumulate, gated;
  int64_t own_bias = 0;  // bytes from a weight's first one to its own bias [N], also where gated; 0: none
  double glu_alpha = 1;  // gated: GluClamp
  double glu_limit = 0;
};

// A step's sequences for attention, the same for all layers.  Device arrays.
struct CudaSequences {
  int64_t count = 0;           // a bound on sequences' numbers; those without queries do nothing
  int64_t rows = 0;            // bound on all queries
  int64_t max_keys = 0;        // bound on start_pos + num_query
  const int32_t* row_begin;    // [count]
  const int32_t* num_query;    // [count]
  const int32_t* start_pos;    // [count]
  const int32_t* block_table;  // [count, table_stride]
  int64_t table_stride = 0;
  const int32_t* row_sequence;  // [rows] which sequence a row is of; -1 = none (padding)
  // Sequences with one query (decodes), and tiles of kCudaQueryTile queries of the others: (sequence, first query).
  int64_t num_decodes = 0;  // bound
  const int32_t* decodes;   // [num_decodes] sequence; -1 = none
  int64_t num_tiles = 0;
  const int32_t* tiles;  // [num_tiles, 2]; sequence -1 = none
};
// Queries of a prefill tile: fixed, so that the host can cut sequences into tiles, from the sequence's first query on.
// Tiles are started in the order of the list: long ones stand first.
inline constexpr int32_t kCudaQueryTile = 128;

struct CudaKvArgs {
  uint8_t dtype;
  CudaSequences sequences;
  const void* k_rows;  // [rows, Nkv*D]
  const void* v_rows;
  int64_t k_stride, v_stride;
  void* k_cache;  // [P, Nkv, block_size, D]
  void* v_cache;
  int64_t kv_heads, block_size, head_dim;
};

struct CudaAttentionArgs {
  uint8_t dtype;
  CudaSequences sequences;
  const void* q;  // [rows, N*D]
  void* out;      // [rows, N*D]
  int64_t q_stride, out_stride;
  const void* k_cache;
  const void* v_cache;
  int64_t heads, kv_heads, block_size, head_dim;
  int64_t window;  // 0 = none
  double scale;
  const void* sinks = nullptr;  // [heads] AccDType; null = none
};

// All between the qkv product and attention in one launch: norms of q and k (gamma null = none), clip of q, k and v,
// rotation, and the write of k and v into the cache.  In place on qkv rows [T, (N + 2*Nkv) * D], with the bits of those
// ops one after the other.  A row of no sequence is changed, not written into the cache.
struct CudaQkvArgs {
  CudaKvArgs kv;  // k_rows and v_rows are those of qkv
  void* q_rows;
  int64_t q_stride, heads;
  const void* q_gamma;  // [D] (per_head) or [N*D], or null
  const void* k_gamma;
  bool norm_per_head;
  double eps;
  double clip;      // <= 0: none
  const void* cos;  // [table rows, half] AccDType
  const void* sin;
  const int32_t* table_rows;  // [rows]; -1: the row is left as it is
  int64_t half;
};

// tokens[i] = planned[i] >= 0 ? planned[i] : last[-1 - planned[i]], the token that the step before sampled in a slot.
struct ResolveTokensArgs {
  const int32_t* planned;
  const int32_t* last;
  int32_t* tokens;
  int64_t count;
};

// Sampling of plain rows (no penalties, no bias, no logprobs): as SampleTokens.  One entry a row.
struct CudaSampleArgs {
  const float* logits;  // [n, V]
  int64_t n, vocab, logits_stride;
  const float* temperature;  // [n]; < 1e-5 = greedy
  const int32_t* top_k;      // [n]; 0 = all
  const float* top_p;        // [n]; 1 = all
  const float* min_p;        // [n]; 0 = all
  const uint32_t* random;    // [n, 4]: seed low, seed high, choice, index
  const int32_t* slot;       // [n] index in `last` to write the token to; -1 = none
  int32_t* token;            // [n]; -1 if broken
  int32_t* last;             // [slots]
};

struct CudaKernelTable {
  int (*embed)(const CudaCall& call, const EmbedArgs& args, int64_t rows);
  int (*rms_norm)(const CudaCall& call, const RmsNormArgs& args, int64_t rows);
  int (*rope)(const CudaCall& call, const RopeArgs& args, int64_t rows);
  int (*clamp)(const CudaCall& call, const ClampArgs& args, int64_t rows);
  int (*combine)(const CudaCall& call, const CombineArgs& args, int64_t rows);
  int (*router)(const CudaCall& call, const CudaRouterArgs& args, int64_t rows);
  int (*expert_order)(const CudaCall& call, const ExpertOrderArgs& args);
  int (*count_experts)(const CudaCall& call, const CountExpertsArgs& args);
  int (*gather)(const CudaCall& call, const GatherArgs& args);
  int (*dense_gemm)(const CudaCall& call, const CudaGemmArgs& args);
  int (*grouped_gemm)(const CudaCall& call, const CudaGemmArgs& args);
  int (*write_kv)(const CudaCall& call, const CudaKvArgs& args);
  int (*attention)(const CudaCall& call, const CudaAttentionArgs& args);
  int (*qkv)(const CudaCall& call, const CudaQkvArgs& args);
  int (*resolve_tokens)(const CudaCall& call, const ResolveTokensArgs& args);
  int (*sample)(const CudaCall& call, const CudaSampleArgs& args);
  int (*expert_places)(const CudaCall& call, const ExpertPlacesArgs& args);
  int (*count_routes)(const CudaCall& call, const CountRoutesArgs& args);
  int (*pack_rows)(const CudaCall& call, const PackRowsArgs& args);
  int (*read_pairs)(const CudaCall& call, const ReadPairsArgs& args);
  int (*place_pairs)(const CudaCall& call, const PlacePairsArgs& args);
  const char* (*error_string)(int error);
  // Whether the error means that this process cannot use the device any more.
  bool (*device_lost)(int error);
};

// The table that was registered; null: this build has no CUDA ops.
const CudaKernelTable* CudaKernels();
// By workers/ops/core/kernel_table_cuda.cc, through RegisterCudaOps().  Before the first op.
void SetCudaKernels(const CudaKernelTable* table);
// Defined where the CUDA ops are linked (sy_ops_cuda, or its emulated twin).
void RegisterCudaOps();

// The launchers, each in its op's file; the table names them.
namespace cuda {
int Embed(const CudaCall& call, const EmbedArgs& args, int64_t rows);        // elementwise_cuda.cu
int RmsNorm(const CudaCall& call, const RmsNormArgs& args, int64_t rows);    // rms_norm_cuda.cu
int Rope(const CudaCall& call, const RopeArgs& args, int64_t rows);          // rope_cuda.cu
int Clamp(const CudaCall& call, const ClampArgs& args, int64_t rows);        // elementwise_cuda.cu
int Combine(const CudaCall& call, const CombineArgs& args, int64_t rows);    // combine_cuda.cu
int Router(const CudaCall& call, const CudaRouterArgs& args, int64_t rows);  // router_cuda.cu
int ExpertOrder(const CudaCall& call, const ExpertOrderArgs& args);          // permute_cuda.cu
int CountExperts(const CudaCall& call, const CountExpertsArgs& args);        // permute_cuda.cu
int Gather(const CudaCall& call, const GatherArgs& args);                    // permute_cuda.cu
int DenseGemm(const CudaCall& call, const CudaGemmArgs& args);               // gemm_cuda.cu
int GroupedGemm(const CudaCall& call, const CudaGemmArgs& args);             // grouped_gemm_cuda.cu
int WriteKv(const CudaCall& call, const CudaKvArgs& args);                   // kv_cache_cuda.cu
int Attention(const CudaCall& call, const CudaAttentionArgs& args);          // attention_cuda.cu
int Qkv(const CudaCall& call, const CudaQkvArgs& args);                      // qkv_cuda.cu
int ResolveTokens(const CudaCall& call, const ResolveTokensArgs& args);      // sampling_cuda.cu
int Sample(const CudaCall& call, const CudaSampleArgs& args);                // sampling_cuda.cu
int ExpertPlaces(const CudaCall& call, const ExpertPlacesArgs& args);        // expert_places_cuda.cu
int CountRoutes(const CudaCall& call, const CountRoutesArgs& args);          // row_exchange_cuda.cu, as all that follow
int PackRows(const CudaCall& call, const PackRowsArgs& args);
int ReadPairs(const CudaCall& call, const ReadPairsArgs& args);
int PlacePairs(const CudaCall& call, const PlacePairsArgs& args);
}  // namespace cuda

}  // namespace switchyard::ops
