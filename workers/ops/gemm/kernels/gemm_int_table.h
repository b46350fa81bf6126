// The table of a file's kernels for weights of few bits.  Included at the end of gemm_int_cpu.cc and
// gemm_avx512_vnni_cpu.cc, which have MultiplyInt<bits, scales, rows>(args) and kIntRows, the most rows of a block.
#pragma once

#include "workers/ops/gemm/kernels/gemm_int_rows.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"

#if !defined(SY_EPILOGUE_NS)  // else the instruction set whose epilogue this has
#define SY_EPILOGUE_NS SY_KERNEL_NS
#endif

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <int kBits, GemmScales kScales, int MR = kIntRows>
void IntBlock(const GemmBlockArgs& args) {
  if (args.rows == MR) return MultiplyInt<kBits, kScales, MR>(args);
  if constexpr (MR > 1) IntBlock<kBits, kScales, MR - 1>(args);
}

template <class Elem, int kBits, GemmScales kScales>
constexpr GemmKernel kIntKernelOf = {.max_rows = kIntRows,
                                     .a_bytes = sizeof(typename NumberOf<kBits>::Type),
                                     .a_group_bytes = sizeof(RowGroup),
                                     .pack = PackInt<Elem, typename NumberOf<kBits>::Type>,
                                     .block = IntBlock<kBits, kScales>,
                                     .epilogue = SY_EPILOGUE_NS::GemmEpilogue};

}  // namespace

extern const IntGemmKernels kIntGemmKernels;
const IntGemmKernels kIntGemmKernels = {{kIntKernelOf<float, 8, GemmScales::kBf16>,
                                         {},
                                         kIntKernelOf<Bf16Bits, 8, GemmScales::kBf16>,
                                         kIntKernelOf<Fp16Bits, 8, GemmScales::kBf16>},
                                        {kIntKernelOf<float, 4, GemmScales::kBf16>,
                                         {},
                                         kIntKernelOf<Bf16Bits, 4, GemmScales::kBf16>,
                                         kIntKernelOf<Fp16Bits, 4, GemmScales::kBf16>},
                                        {kIntKernelOf<float, 8, GemmScales::kFp16>,
                                         {},
                                         kIntKernelOf<Bf16Bits, 8, GemmScales::kFp16>,
                                         kIntKernelOf<Fp16Bits, 8, GemmScales::kFp16>},
                                        {kIntKernelOf<float, 4, GemmScales::kFp16>,
                                         {},
                                         kIntKernelOf<Bf16Bits, 4, GemmScales::kFp16>,
                                         kIntKernelOf<Fp16Bits, 4, GemmScales::kFp16>},
                                        {kIntKernelOf<float, 4, GemmScales::kFp16AndLeast>,
                                         {},
                                         kIntKernelOf<Bf16Bits, 4, GemmScales::kFp16AndLeast>,
                                         kIntKernelOf<Fp16Bits, 4, GemmScales::kFp16AndLeast>},
                                        {kIntKernelOf<float, 4, GemmScales::kBf16OfFp4>,
                                         {},
                                         kIntKernelOf<Bf16Bits, 4, GemmScales::kBf16OfFp4>,
                                         kIntKernelOf<Fp16Bits, 4, GemmScales::kBf16OfFp4>},
                                        {kIntKernelOf<float, 6, GemmScales::kFp16OfHalves>,
                                         {},
                                         kIntKernelOf<Bf16Bits, 6, GemmScales::kFp16OfHalves>,
                                         kIntKernelOf<Fp16Bits, 6, GemmScales::kFp16OfHalves>}};

}  // namespace switchyard::ops::SY_KERNEL_NS
