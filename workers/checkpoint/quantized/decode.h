// Decoders of published quantized weights: stored codes to fp32 values, as pure functions.  Thread-safe.
//
// A value is (code - zero point) × scale.  The difference is exact in fp32; so is the product where the scale is bf16
// or fp16.  References that multiply in the scale's own dtype (compressed-tensors, AWQ and GPTQ with fp16 or bf16
// scales) round that product once, to nearest even; rounding our value to that dtype gives the same bits.
#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"

namespace switchyard::checkpoint {

enum class CodeType : uint8_t {
  kE4m3,   // fp8 with 4 bits of exponent; 0x7f and 0xff are NaN, there is no Inf
  kInt8,   // two's complement
  kUint8,  // from 0 to 255
  kUint4,  // two in a byte, the lower four bits first
  kE2m1,   // fp4, two in a byte, the lower four bits first
};

// Bits of one code.
int CodeBits(CodeType type);

// The value of one code of E4M3, and of a scale of E8M0: 2^(code - 127), NaN for 255.
float DecodeE4m3(uint8_t code);
float DecodeE8m0(uint8_t code);
// Bits in bf16 of half of each scale of E8M0, by code, which weights of MXFP4 hold.
const std::array<uint16_t, 256>& HalfPowers();

// The first to.size() codes as floats, without zero point and scale.  REQUIRES: the bytes have so many.
void DecodeCodes(CodeType type, absl::Span<const uint8_t> bytes, absl::Span<float> to);

// The groups of one row's columns: column c is in group order[c], or without an order in group c / size.
struct RowGroups {
  absl::Span<const float> scales;   // by group
  absl::Span<const float> zeros;    // by group; empty: there are none
  int64_t size = 0;                 // columns of a group; the last may have fewer
  absl::Span<const int32_t> order;  // by column; empty: in order
};

// row[c] = (row[c] - zero) × scale.  REQUIRES: every column's group exists.
void ApplyGroups(const RowGroups& groups, absl::Span<float> row);

// GPTQ: words [columns / f, outputs] with f = 32 / bits codes of one output, the lowest bits first, to codes
// [outputs, columns], a byte each.  Zero points of a group are as one output, whose columns are the matrix's outputs.
void TransposeGptq(const uint32_t* words, int bits, int64_t outputs, int64_t columns, uint8_t* codes);
// AWQ: words [columns, outputs / 8] with codes of four bits of eight outputs in the order 0 2 4 6 1 3 5 7, the lowest
// bits first, to codes [outputs, columns].  Zero points of a group are as one column.
void TransposeAwq(const uint32_t* words, int64_t outputs, int64_t columns, uint8_t* codes);

}  // namespace switchyard::checkpoint
