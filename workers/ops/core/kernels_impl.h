// The functions that the kernel files define, in the namespace of the instruction set that they are compiled for
// (SY_KERNEL_NS, set by ops.cmake), and access to rows of their arguments.  Only for *_cpu.cc files.
#pragma once

#include "workers/ops/core/kernels.h"
#include "workers/ops/core/simd.h"

namespace switchyard::ops::SY_KERNEL_NS {

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end);
void LayerNormRows(const LayerNormArgs& args, int64_t begin, int64_t end);
void RopeRows(const RopeArgs& args, int64_t begin, int64_t end);
void RopeBackwardRows(const RopeArgs& args, int64_t begin, int64_t end);
void EmbedRows(const EmbedArgs& args, int64_t begin, int64_t end);
void GeluRows(const GeluArgs& args, int64_t begin, int64_t end);
void ClampRows(const ClampArgs& args, int64_t begin, int64_t end);
void CombineRows(const CombineArgs& args, int64_t begin, int64_t end);
void RouterRows(const RouterArgs& args, int64_t begin, int64_t end);
void AttentionRows(const AttentionTask& task);
void AttentionBf16(const AttentionTask& task);  // namespaces avx512_bf16 and amx alone
LogitStats ScanLogits(uint8_t dtype, const void* x, int64_t n);
double ExpSum(uint8_t dtype, const void* x, int64_t n, double max, double scale, void* weights);
void SwiGluBackwardRows(const SwiGluBackwardArgs& args, int64_t begin, int64_t end);
void RowScaleBackwardRows(const RowScaleBackwardArgs& args, int64_t begin, int64_t end);
void RmsNormBackwardRows(const NormBackwardArgs& args, int64_t begin, int64_t end, void* dgamma);
void LayerNormBackwardRows(const NormBackwardArgs& args, int64_t begin, int64_t end, void* dgamma);
void GeluBackwardRows(const GeluBackwardArgs& args, int64_t begin, int64_t end);
void ExpertBiasBackwardRows(const ExpertBiasBackwardArgs& args, int64_t begin, int64_t end, void* sums);
void RouterBackwardRows(const RouterBackwardArgs& args, int64_t begin, int64_t end, void* scratch);
void RouterSums(const RouterSumsArgs& args, int64_t begin, int64_t end, void* sums);
void ColumnSums(const ColumnSumArgs& args, int64_t begin, int64_t end, void* sums);
void AddPartials(const AddPartialsArgs& args, int64_t begin, int64_t end);
void ClampBackwardRows(const ClampBackwardArgs& args, int64_t begin, int64_t end);
void AttentionBackward(const AttentionBackwardTask& task);
void EmbedBackwardColumns(const EmbedBackwardArgs& args, int64_t begin, int64_t end);
void CrossEntropyRows(const CrossEntropyArgs& args, int64_t begin, int64_t end);
void AdamWRange(const AdamWArgs& args, int64_t begin, int64_t end);
double SumOfSquaresOf(uint8_t dtype, const void* x, int64_t n);

extern const KernelTable kTable;

namespace {

template <class Elem>
SY_INLINE Elem* RowAt(const KernelRows& rows, int64_t row) {
  return static_cast<Elem*>(rows.at) + row * rows.stride;
}

// Elements [column, column + n) of a row, as lanes of Elem's AccDType.
template <class Elem>
SY_INLINE VecT<Elem> LoadMixed(const MixedRows& rows, int64_t row, int64_t column, int64_t n) {
  const int64_t at = row * rows.stride + column;
  if (rows.acc) return LoadPart(static_cast<const AccT<Elem>*>(rows.at) + at, n);
  return LoadPart(static_cast<const Elem*>(rows.at) + at, n);
}
template <class Elem>
SY_INLINE void StoreMixed(VecT<Elem> x, const MixedRows& rows, int64_t row, int64_t column, int64_t n) {
  const int64_t at = row * rows.stride + column;
  if (rows.acc) return StorePart<AccT<Elem>>(x, static_cast<AccT<Elem>*>(rows.at) + at, n);
  StorePart<Elem>(x, static_cast<Elem*>(rows.at) + at, n);
}

}  // namespace
}  // namespace switchyard::ops::SY_KERNEL_NS
