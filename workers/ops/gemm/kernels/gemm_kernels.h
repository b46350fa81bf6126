// The inner kernels of the matrix products: one table per (instruction set, dtype), chosen by FindGemmKernel.
//
// Internal to workers/ops.  Kernel files include nothing but this and simd.h (see there why), so arguments are plain.
// Words: an A block is up to `max_rows` rows of x in the order in which the kernel reads them, without gaps;
// a panel is 32 columns of a Weight (weight.h).  A kernel multiplies one A block with one panel over all of k.
#pragma once

#include <cstdint>

namespace switchyard::ops {

inline constexpr int kGemmPanel = 32;     // = kPanelColumns
inline constexpr int kGemmMaxRows = 32;   // of any kernel's A block
inline constexpr int kGemmMaxPanels = 2;  // gate and up
// Of weights of few bits (quantize_panel.h): numbers of a column with one scale, what a group has beside its numbers,
// and of a panel's blocks the bytes of the scales, which come first, then perhaps least values, or scales of the second
// half, and all bytes.
// kBf16OfFp4: numbers are codes of fp4.  kFp16OfHalves: a scale for each half of a group.
enum class GemmScales { kBf16, kFp16, kFp16AndLeast, kBf16OfFp4, kFp16OfHalves };
inline constexpr int kGemmQuantGroup = 32;
inline constexpr int kGemmScaleBytes = 2 * kGemmPanel;
constexpr int GemmNumbersOffset(GemmScales scales) {
  return scales == GemmScales::kFp16AndLeast || scales == GemmScales::kFp16OfHalves ? 2 * kGemmScaleBytes
                                                                                    : kGemmScaleBytes;
}
// Where the upper 2 of 6 bits are, behind the lower 4.
inline constexpr int kGemmUpperOffset = kGemmQuantGroup * kGemmPanel / 2;
constexpr int GemmQuantBlockBytes(int bits, GemmScales scales) {
  return GemmNumbersOffset(scales) + kGemmQuantGroup * kGemmPanel * bits / 8;
}

// Copies rows into an A block, converting them to the kernel's dtype.
struct GemmPackArgs {
  const void* x;                     // first row, or row 0 of the matrix that row_idx indexes
  int64_t x_stride;                  // elements
  const int32_t* row_idx = nullptr;  // [rows] or null: x's rows in order
  int64_t rows;                      // 1 … max_rows
  int64_t k, padded_k;
  void* a;  // 64-byte aligned, rows * ARowBytes
};

// Columns of x as an A block: row r of the block is column r, and k counts x's rows.
struct GemmPackColumnsArgs {
  const void* x;  // first row, first column
  int64_t x_stride;
  int64_t columns;  // 1 … max_rows
  int64_t k, padded_k;
  void* a;
};

// Columns of x as a panel: k counts x's rows, zeros stand behind the last row and beside the last column.
struct GemmPackPanelArgs {
  uint8_t x_dtype, dtype;  // DType: of x, of the panel
  const void* x;           // first row, first column, or row 0 of the matrix that row_idx indexes
  int64_t x_stride;
  const int32_t* row_idx = nullptr;  // [k] or null: x's rows in order
  int64_t columns;                   // 1 … 32
  int64_t k, padded_k;               // padded_k is even for bf16
  void* panel;
};

struct GemmBlockArgs {
  const void* a;
  int64_t rows;   // 1 … max_rows
  const void* b;  // one panel
  int64_t padded_k;
  void* c;                   // [rows, 32] Acc, written; 64-byte aligned
  bool from_memory = false;  // the panel was not used just before, so it is probably in no cache
};

// From sums to y.  Not gated: y[:, column + i] (+)= c[0][:, i] + bias[column + i].  Gated: c[0] is gate, c[1] up, and
// y = silu(gate) * up, or, with a limit, as activation.h's GluClamp says; to both their biases are added first.
struct GemmEpilogueArgs {
  uint8_t dtype, y_dtype;  // DType; y_dtype is dtype or its accumulator
  bool accumulate = false, gated = false;
  const void* c;  // [1 or 2][rows, 32] Acc
  int64_t rows;
  int64_t columns;                // 1 … 32 of the panel exist
  const void* bias = nullptr;     // of the panel's first column, or null
  const void* up_bias = nullptr;  // gated: of up's; null where bias is
  double alpha = 1, limit = 0;    // gated; limit 0: none
  void* y;                        // likewise, first row
  int64_t y_stride;               // elements
};

struct GemmKernel {
  int max_rows;
  int a_bytes;            // per element of an A block
  int a_group_bytes = 0;  // beside, for each kGemmQuantGroup elements of a row
  void (*pack)(const GemmPackArgs& args);
  // Both null for weights of few bits, which are not trained.
  void (*pack_columns)(const GemmPackColumnsArgs& args) = nullptr;
  void (*pack_panel)(const GemmPackPanelArgs& args) = nullptr;
  void (*block)(const GemmBlockArgs& args);
  void (*epilogue)(const GemmEpilogueArgs& args);
  void (*end)() = nullptr;  // after a thread's series of blocks; may be null

  // Of an A block.
  constexpr int64_t ARowBytes(int64_t padded_k) const {
    return padded_k * a_bytes + padded_k / kGemmQuantGroup * a_group_bytes;
  }
};

// The dtypes in the order of DType's values: fp32, fp64, bf16, fp16.
using GemmKernelRow = GemmKernel[4];
// Those for weights of few bits, in the order of WeightFormat's values after kPlain; none of fp64.
using IntGemmKernels = GemmKernelRow[7];

namespace baseline {
extern const ops::GemmKernelRow kGemmKernels;
extern const ops::IntGemmKernels kIntGemmKernels;
void GemmEpilogue(const ops::GemmEpilogueArgs& args);
void GemmPackPanel(const ops::GemmPackPanelArgs& args);
}  // namespace baseline
namespace avx2 {
extern const GemmKernelRow kGemmKernels;
extern const IntGemmKernels kIntGemmKernels;
void GemmEpilogue(const GemmEpilogueArgs& args);
void GemmPackPanel(const GemmPackPanelArgs& args);
}  // namespace avx2
namespace avx512 {
extern const GemmKernelRow kGemmKernels;
extern const IntGemmKernels kIntGemmKernels;
void GemmEpilogue(const GemmEpilogueArgs& args);
void GemmPackPanel(const GemmPackPanelArgs& args);
}  // namespace avx512
namespace avx_vnni {
extern const IntGemmKernels kIntGemmKernels;
}  // namespace avx_vnni
namespace avx512_vnni {
extern const IntGemmKernels kIntGemmKernels;
}  // namespace avx512_vnni
extern const GemmKernel kAvx512Bf16GemmKernel;
extern const GemmKernel kAmxBf16GemmKernel;

}  // namespace switchyard::ops
