// The twin of wgmma_cuda.h: a warp computes a product when it is issued, and a wait writes it to d.
#include "tests/cuda_emulation/wgmma.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "cuda_emulation/narrow.h"
#include "tests/cuda_emulation/block_runner.h"
#include "workers/ops/cuda/wgmma_cuda.h"

namespace cuda_emulation {
namespace {

constexpr uint32_t kPoison = 0xFFFFFFFFu;     // a NaN
constexpr uint64_t kAddressSpace = 1u << 18;  // what a descriptor can name, in bytes

struct IssueLane {
  WgmmaThread* state;
  float* d;
  int tokens;
  bool bf16, add;
  uint64_t a, b;
  int warp;                // of the warpgroup
  const uint32_t* rows_a;  // [4]: a in registers, and rows of b are k; null: neither
};

struct WaitLane {
  WgmmaThread* state;
  int first_left;  // group
};

[[noreturn]] void Fault(const std::string& why) { ThreadFault(cudaErrorLaunchFailure, ("wgmma: " + why).c_str()); }

// Chunk `chunk` of 16 bytes of row `row` of the operand: rows of 128 bytes in groups of 8, which lie as many bytes
// apart as the descriptor says; bits 4 to 6 of the address are mixed with bits 7 to 9.  Chunks from 8 on, of an operand
// whose rows are k, lie behind the descriptor's leading offset.
const char* Chunk(uint64_t descriptor, int row, int chunk) {
  if (descriptor >> 62 != 1) Fault("the emulation knows the swizzle of 128 bytes only");
  if ((descriptor >> 49 & 7) != 0) Fault("the emulation knows base offset 0 only");
  const uint64_t stride = (descriptor >> 32 & 0x3FFF) << 4;
  uint64_t address = ((descriptor & 0x3FFF) << 4) + static_cast<uint64_t>(row / 8) * stride +
                     static_cast<uint64_t>(row % 8 * 128 + chunk % 8 * 16) +
                     static_cast<uint64_t>(chunk / 8) * ((descriptor >> 16 & 0x3FFF) << 4);
  address ^= (address >> 7 & 7) << 4;
  const char* base = static_cast<const char*>(DynamicSharedBase());
  const uint64_t offset = (address - reinterpret_cast<uintptr_t>(base)) % kAddressSpace;
  if (offset + 16 > DynamicSharedBytes()) Fault("an operand lies outside of the dynamic shared memory");
  return base + offset;
}

uint64_t HashRows(uint64_t descriptor, int count, int chunks, uint64_t hash) {
  for (int row = 0; row < count; ++row) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      uint64_t words[2];
      std::memcpy(words, Chunk(descriptor, row, chunk), 16);
      for (uint64_t word : words) hash = (hash ^ word) * 0x9E3779B97F4A7C15ull + (hash >> 29);
    }
  }
  return hash;
}

uint64_t HashOperands(const WgmmaThread::Operands& of) {
  return of.rows ? HashRows(of.b, 16, of.tokens / 8, 1) : HashRows(of.b, of.tokens, 2, HashRows(of.a, 64, 2, 1));
}

float Wide(uint16_t bits, bool bf16) { return bf16 ? FloatFromBf16(bits) : FloatFromHalf(bits); }

// to[k][row]
template <int kRows>
void Decode(uint64_t descriptor, int first, int count, bool bf16, float (&to)[16][kRows]) {
  for (int row = 0; row < count; ++row) {
    for (int chunk = 0; chunk < 2; ++chunk) {
      uint16_t bits[8];
      std::memcpy(bits, Chunk(descriptor, first + row, chunk), 16);
      for (int i = 0; i < 8; ++i) to[chunk * 8 + i][row] = Wide(bits[i], bf16);
    }
  }
}

// to[k][column] of an operand whose rows are k.
void DecodeColumns(uint64_t descriptor, int columns, bool bf16, float (&to)[16][kMaxWgmmaTokens]) {
  for (int k = 0; k < 16; ++k) {
    for (int chunk = 0; chunk < columns / 8; ++chunk) {
      uint16_t bits[8];
      std::memcpy(bits, Chunk(descriptor, k, chunk), 16);
      for (int i = 0; i < 8; ++i) to[k][chunk * 8 + i] = Wide(bits[i], bf16);
    }
  }
}

// to[k][row] of a warp's registers: register r of a lane has A[lane / 4 + r % 2 * 8][lane % 4 * 2 + r / 2 * 8 ..].
void DecodeRegisters(void* const (&lanes)[32], bool bf16, float (&to)[16][16]) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const uint32_t pair = static_cast<const IssueLane*>(lanes[lane])->rows_a[r];
      const int row = lane / 4 + r % 2 * 8, k = lane % 4 * 2 + r / 2 * 8;
      to[k][row] = Wide(static_cast<uint16_t>(pair), bf16);
      to[k + 1][row] = Wide(static_cast<uint16_t>(pair >> 16), bf16);
    }
  }
}

// Those of d that are on their way, or new ones, which begin with what is there.
WgmmaThread::Sums& SumsOf(const IssueLane& lane) {
  WgmmaThread& state = *lane.state;
  const int count = lane.tokens / 2;
  for (WgmmaThread::Sums& sums : state.sums) {
    if (sums.d != lane.d) continue;
    if (sums.count != count) Fault("products of two shapes to the same sums without a wait between");
    return sums;
  }
  WgmmaThread::Sums& sums = state.sums.emplace_back();
  sums.d = lane.d, sums.count = count;
  std::memcpy(sums.value.data(), lane.d, static_cast<size_t>(count) * 4);
  std::memset(lane.d, static_cast<int>(kPoison), static_cast<size_t>(count) * 4);
  return sums;
}

void IssueTogether(void* const (&lanes)[32], uint32_t mask) {
  if (mask != 0xFFFFFFFFu) Fault("by less than 32 lanes");
  const IssueLane& first = *static_cast<const IssueLane*>(lanes[0]);
  for (void* lane : lanes) {
    const IssueLane& other = *static_cast<const IssueLane*>(lane);
    if (other.a != first.a || other.b != first.b || other.add != first.add || other.tokens != first.tokens) {
      Fault("the lanes name different operands");
    }
  }
  if (BlockRunner::OfThisThread().HasUnfencedCopies()) Fault("bytes of cp.async without FenceProxyAsync()");
  thread_local float a[16][16], b[16][kMaxWgmmaTokens], product[16][kMaxWgmmaTokens];
  if (first.rows_a != nullptr) {
    DecodeRegisters(lanes, first.bf16, a);
    DecodeColumns(first.b, first.tokens, first.bf16, b);
  } else {
    Decode(first.a, first.warp * 16, 16, first.bf16, a);
    Decode(first.b, 0, first.tokens, first.bf16, b);
  }
  // Fragment value v of block j: D[lane / 4 + v / 2 * 8][8 * j + lane % 4 * 2 + v % 2].
  const auto each = [&](auto function) {
    for (int lane = 0; lane < 32; ++lane) {
      WgmmaThread::Sums& sums = SumsOf(*static_cast<const IssueLane*>(lanes[lane]));
      for (int i = 0; i < sums.count; ++i) {
        function(sums.value[static_cast<size_t>(i)],
                 product[lane / 4 + i % 4 / 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2]);
      }
    }
  };
  each([&](float& sum, float& to) { to = first.add ? sum : 0.f; });
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int token = 0; token < first.tokens; ++token) product[row][token] += a[k][row] * b[k][token];
    }
  }
  each([](float& sum, float& from) { sum = from; });
  for (void* lane : lanes) {
    const IssueLane& of = *static_cast<const IssueLane*>(lane);
    SumsOf(of).group = of.state->open_group;
  }
  const bool rows = first.rows_a != nullptr;
  WgmmaThread::Operands operands{first.a, first.b, first.tokens, first.state->open_group, rows, 0};
  operands.hash = HashOperands(operands);
  first.state->operands.push_back(operands);
}

void HandOut(const WaitLane& lane) {
  auto& all = lane.state->sums;
  const auto done = [&](const WgmmaThread::Sums& sums) {
    if (sums.group >= lane.first_left) return false;
    for (int i = 0; i < sums.count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, sums.d + i, 4);
      if (bits != kPoison) Fault("sums were written while a product added to them");
    }
    std::memcpy(sums.d, sums.value.data(), static_cast<size_t>(sums.count) * 4);
    return true;
  };
  all.erase(std::remove_if(all.begin(), all.end(), done), all.end());
}

void WaitTogether(void* const (&lanes)[32], uint32_t mask) {
  if (mask != 0xFFFFFFFFu) Fault("a wait by less than 32 lanes");
  for (void* each : lanes) {
    const WaitLane& lane = *static_cast<const WaitLane*>(each);
    auto& operands = lane.state->operands;
    const auto done = [&](const WgmmaThread::Operands& of) {
      if (of.group >= lane.first_left) return false;
      if (HashOperands(of) != of.hash) Fault("an operand changed in shared memory before its product was waited for");
      return true;
    };
    operands.erase(std::remove_if(operands.begin(), operands.end(), done), operands.end());
    HandOut(lane);
    lane.state->fenced = false;
  }
}

WgmmaThread& State() { return BlockRunner::OfThisThread().current().wgmma; }

}  // namespace

uint32_t SharedOffset(const void* shared) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(shared)); }

uint64_t WgmmaDescriptor(const void* shared) {
  RequireAligned16(shared, "wgmma");
  return (reinterpret_cast<uintptr_t>(shared) % kAddressSpace) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

uint64_t WgmmaColumnDescriptor(const void* shared, int columns_apart) {
  constexpr uint64_t kLeadingOffset = uint64_t{0x3FFF} << 16;
  return (WgmmaDescriptor(shared) & ~kLeadingOffset) | static_cast<uint64_t>(columns_apart >> 4) << 16;
}

namespace {

void Issue(float* d, int tokens, bool bf16, uint64_t a, const uint32_t* rows_a, uint64_t b, bool add) {
  if (blockDim.x % 128 != 0 || blockDim.y * blockDim.z != 1) Fault("a block that is not made of warpgroups");
  WgmmaThread& state = State();
  if (!state.fenced) Fault("no WgmmaFence() since the last wait");
  IssueLane lane{&state, d, tokens, bf16, add, a, b, static_cast<int>(threadIdx.x / 32 % 4), rows_a};
  WarpTogether("wgmma", 0xFFFFFFFFu, &IssueTogether, &lane);
}

}  // namespace

void WgmmaIssue(float* d, int tokens, bool bf16, uint64_t a, uint64_t b, bool add) {
  Issue(d, tokens, bf16, a, nullptr, b, add);
}
void WgmmaIssueRows(float* d, int columns, bool bf16, const uint32_t (&a)[4], uint64_t b, bool add) {
  Issue(d, columns, bf16, 0, a, b, add);
}

void WgmmaFenceIssue() { State().fenced = true; }
void WgmmaCommitGroup() { ++State().open_group; }

void WgmmaWaitGroups(int groups_left) {
  WgmmaThread& state = State();
  WaitLane lane{&state, state.open_group - groups_left};
  WarpTogether("wgmma.wait_group", 0xFFFFFFFFu, &WaitTogether, &lane);
}

void FenceAsyncProxy() { State().copies_unfenced = false; }

}  // namespace cuda_emulation
