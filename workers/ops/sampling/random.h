// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
//
// Pure functions: the same key and counter give the same numbers on every machine, thread and batch.
#pragma once

#include <array>
#include <cstdint>

namespace switchyard::ops {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1) with 53 bits: what the sampler draws for output token `index` of choice `choice` of a request.
// key = seed (low word first), counter = {index, choice, 0, 0}.
double SampleUniform(uint64_t seed, uint32_t choice, uint32_t index);

}  // namespace switchyard::ops
