// Types whose blocks are one element: a change of precision.
#include "workers/checkpoint/gguf/block_decoders.h"

namespace switchyard::checkpoint {

void DecodeF32(const uint8_t* blocks, int64_t num_blocks, float* out) {
  std::memcpy(out, blocks, static_cast<size_t>(num_blocks) * sizeof(float));
}

void DecodeF16(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t i = 0; i < num_blocks; ++i) out[i] = LoadHalf(blocks + 2 * i);
}

void DecodeBf16(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t i = 0; i < num_blocks; ++i) out[i] = FloatOfBits(static_cast<uint32_t>(LoadU16(blocks + 2 * i)) << 16);
}

}  // namespace switchyard::checkpoint
