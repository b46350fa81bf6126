// The functions of a running block, by which a CUDA thread waits for others.  Called by the stand-ins of CUDA's
// functions only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuda_emulation {

enum class Reduction { kNone, kOr, kAnd, kCount };

// Waits until every thread of the block has called it with the same kind; returns the reduction of all threads' `value`
// (0 for kNone).  A thread that ended, or waits elsewhere for ever, makes a deadlock, which aborts with a list of
// threads and where they wait.
int BlockBarrier(Reduction kind, int value);

// Computes an operation of all lanes of a warp: lanes[i] is lane i's argument, null if its bit in `mask` is 0.
using WarpFunction = void (*)(void* const (&lanes)[32], uint32_t mask);

// Waits until every lane in `mask` has called it with the same mask and function; the last one runs the function.
// Aborts if the mask lacks the calling lane.  Lanes past the end of the block do not count as named.
void WarpTogether(const char* name, uint32_t mask, WarpFunction function, void* lane);

uint32_t ActiveMask();      // the lanes of this warp that have not ended
uint32_t LaneIndex();       // 0..31
void YieldThread();         // lets the other threads of the block run
void* DynamicSharedBase();  // aligned to 1024
size_t DynamicSharedBytes();

// cp.async: the bytes land only when their thread waits.
void AsyncCopyIssue(void* shared, const void* global, int bytes, bool valid);
void AsyncCopyCommit();
void AsyncCopyWait(int groups_left);

// griddepcontrol.wait.
void NoteWaitForPrecedingKernel();

// Ends the kernel with cudaErrorIllegalAddress or the like after printing `why`, the kernel, block and thread.
[[noreturn]] void ThreadFault(int cuda_error, const char* why);

}  // namespace cuda_emulation

inline void __syncthreads() { cuda_emulation::BlockBarrier(cuda_emulation::Reduction::kNone, 0); }
inline int __syncthreads_or(int predicate) {
  return cuda_emulation::BlockBarrier(cuda_emulation::Reduction::kOr, predicate);
}
inline int __syncthreads_and(int predicate) {
  return cuda_emulation::BlockBarrier(cuda_emulation::Reduction::kAnd, predicate);
}
inline int __syncthreads_count(int predicate) {
  return cuda_emulation::BlockBarrier(cuda_emulation::Reduction::kCount, predicate);
}
// One block after the other, one thread at a time: memory is always in order.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned int) { cuda_emulation::YieldThread(); }
long long clock64();
inline void __prof_trigger(int) {}
[[noreturn]] void __trap();
