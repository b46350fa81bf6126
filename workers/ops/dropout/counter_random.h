// Random numbers of training: pure functions of what they are for, so that they are the same bits whatever ranks,
// micro-batches, threads, and order of computation are, and backward draws again what forward drew.
//
// Draw(key, i) is the i-th number of SplitMix64 (Steele, Lea and Flood, 2014) seeded with key.  A number's key is a
// chain of draws:
//   step key = Draw(Draw(seed ^ kTrainingDomain, 0), step)      steps count from 1
//   row key  = Draw(Draw(step key, sequence), position)         sequence: its place in the step's batch of all ranks
//   site key = Draw(Draw(row key, site), layer)                 embedding: layer 0
//   element  = Draw(site key, column); of attention Draw(Draw(site key, head), key's position in its document)
// FROZEN: another chain, site number or threshold changes the bits of jobs that go on.
//
// Functions are static: kernel files must not define inline ones with linkage (see core/simd.h).
#pragma once

#include <cstdint>

namespace switchyard::ops {

enum class NoiseSite : uint8_t {
  kEmbedding = 0,     // rows that the first layer gets
  kAttention = 1,     // probabilities
  kAttentionOut = 2,  // what attention adds to the residual
  kFeedForward = 3,   // what an MLP or MoE layer adds
  kRouter = 4,        // rows that a MoE layer gets
  kAdapter = 8,       // an adapter's input: q_proj 8, k_proj 9, v_proj 10, o_proj 11
};

static constexpr uint64_t kTrainingDomain = 0x73776974636879ull;

static inline __attribute__((always_inline)) uint64_t Draw(uint64_t key, uint64_t i) {
  uint64_t z = key + (i + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

static inline uint64_t StepKey(uint64_t seed, int64_t step) {
  return Draw(Draw(seed ^ kTrainingDomain, 0), static_cast<uint64_t>(step));
}
static inline uint64_t RowKey(uint64_t step_key, int64_t sequence, int64_t position) {
  return Draw(Draw(step_key, static_cast<uint64_t>(sequence)), static_cast<uint64_t>(position));
}
static inline __attribute__((always_inline)) uint64_t SiteKey(uint64_t row_key, uint64_t site, int64_t layer) {
  return Draw(Draw(row_key, site), static_cast<uint64_t>(layer));
}

// A number is dropped if the upper half of its draw is below this.  REQUIRES: 0 <= rate < 1.
static inline uint64_t DropThreshold(double rate) { return static_cast<uint64_t>(rate * 0x1p32); }
static inline __attribute__((always_inline)) bool Keeps(uint64_t key, int64_t i, uint64_t threshold) {
  return (Draw(key, static_cast<uint64_t>(i)) >> 32) >= threshold;
}

// Uniform in [0, 1) with 53 bits.
static inline double UniformDraw(uint64_t key, int64_t i) {
  return static_cast<double>(Draw(key, static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
}

}  // namespace switchyard::ops
