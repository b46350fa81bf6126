// What device code calls: the running block's runner does it.
#include "cuda_emulation/warp.h"

#include <chrono>
#include <cstdio>
#include <string>

#include "cuda_emulation/runtime_api.h"
#include "tests/cuda_emulation/block_runner.h"

namespace cuda_emulation {
namespace {

BlockRunner& Runner() { return BlockRunner::OfThisThread(); }

void BallotLanes(void* const (&lanes)[32], uint32_t mask) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1 && static_cast<VoteLane*>(lanes[i])->value != 0) result |= 1u << i;
  }
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) static_cast<VoteLane*>(lanes[i])->result = result;
  }
}

void MatchLanes(void* const (&lanes)[32], uint32_t mask) {
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    auto* lane = static_cast<VoteLane*>(lanes[i]);
    lane->result = 0;
    for (int k = 0; k < 32; ++k) {
      if (mask >> k & 1 && static_cast<VoteLane*>(lanes[k])->value == lane->value) lane->result |= 1u << k;
    }
  }
}

void CheckAligned(const void* pointer, const char* which) {
  if (reinterpret_cast<uintptr_t>(pointer) % 16 == 0) return;
  ThreadFault(cudaErrorMisalignedAddress, (std::string("cp.async: ") + which + " not aligned to 16 bytes").c_str());
}

}  // namespace

int BlockBarrier(Reduction kind, int value) { return Runner().Barrier(kind, value); }
void WarpTogether(const char* name, uint32_t mask, WarpFunction function, void* lane) {
  Runner().WarpOp(name, mask, function, lane);
}
uint32_t ActiveMask() { return Runner().LanesLeft(); }
uint32_t LaneIndex() { return Runner().LaneOfCurrent(); }
void YieldThread() { Runner().Yield(); }
void* DynamicSharedBase() { return Runner().shared_base(); }
size_t DynamicSharedBytes() { return Runner().shared_bytes(); }
void NoteWaitForPrecedingKernel() { Runner().current().waited_for_preceding = true; }
void ThreadFault(int cuda_error, const char* why) { Runner().Fault(cuda_error, why); }
void SyncLanes(void* const (&)[32], uint32_t) {}

unsigned Ballot(unsigned mask, bool predicate) {
  VoteLane lane{predicate, 0};
  WarpTogether("__ballot_sync", mask, &BallotLanes, &lane);
  return lane.result;
}

unsigned MatchAny(unsigned mask, unsigned long long value) {
  VoteLane lane{value, 0};
  WarpTogether("__match_any_sync", mask, &MatchLanes, &lane);
  return lane.result;
}

void AsyncCopyIssue(void* shared, const void* global, int bytes, bool valid) {
  CheckAligned(shared, "shared address");
  CheckAligned(global, "global address");
  CudaThread& thread = Runner().current();
  thread.copies.push_back({shared, global, bytes, valid, thread.open_group});
}

void AsyncCopyCommit() { ++Runner().current().open_group; }

void AsyncCopyWait(int groups_left) {
  CudaThread& thread = Runner().current();
  const int first_left = thread.open_group - groups_left;
  size_t kept = 0;
  for (const AsyncCopy& copy : thread.copies) {
    if (copy.group >= first_left) {
      thread.copies[kept++] = copy;
    } else if (copy.valid) {
      std::memcpy(copy.shared, copy.global, static_cast<size_t>(copy.bytes));
    } else {
      std::memset(copy.shared, 0, static_cast<size_t>(copy.bytes));
    }
  }
  if (kept < thread.copies.size()) thread.wgmma.copies_unfenced = true;
  thread.copies.resize(kept);
}

}  // namespace cuda_emulation

long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
void __trap() { cuda_emulation::ThreadFault(cudaErrorLaunchFailure, "__trap()"); }
