// Runs the blocks of a grid on one OS thread, one after the other, each CUDA thread as a fiber; one per OS thread.
//
// Only waiting threads need a stack each: a fiber calls the kernel for one thread after the other until one of them
// waits for others; then another fiber takes the threads that have not begun.  The seed shuffles the order in which
// blocks and threads run; it is the same for the same seed and grid.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_emulation/block.h"
#include "tests/cuda_emulation/fiber.h"
#include "tests/cuda_emulation/launch.h"
#include "tests/cuda_emulation/wgmma.h"

namespace cuda_emulation {

enum class ThreadPhase : uint8_t { kUnstarted, kReady, kAtBarrier, kAtWarp, kEnded };

struct AsyncCopy {
  void* shared;
  const void* global;
  int bytes;
  bool valid;
  int group;
};

struct CudaThread {
  ThreadPhase phase = ThreadPhase::kUnstarted;
  bool waited_for_preceding = false;
  uint32_t mask = 0;
  uint3 position{};
  Fiber* fiber = nullptr;
  WarpFunction function = nullptr;
  void* lane = nullptr;
  const char* waits_at = nullptr;
  std::vector<AsyncCopy> copies;
  int open_group = 0;
  WgmmaThread wgmma;
};

class BlockRunner {
 public:
  static BlockRunner& OfThisThread();

  int Run(const Grid& grid);
  bool running() const { return current_ != nullptr; }

  // Called from a CUDA thread.
  int Barrier(Reduction kind, int value);
  void WarpOp(const char* name, uint32_t mask, WarpFunction function, void* lane);
  void Yield();
  [[noreturn]] void Fault(int error, const std::string& why);
  CudaThread& current() { return *current_; }
  uint32_t LaneOfCurrent() const { return static_cast<uint32_t>((current_ - threads_.data()) & 31); }
  uint32_t LanesLeft() const;
  bool HasUnfencedCopies() const;  // some thread

  void* shared_base() const { return shared_base_; }
  size_t shared_bytes() const { return grid_->shared_bytes; }
  bool IsGuardOfShared(const void* address) const;
  std::string Where() const;  // "kernel K, block (0, 0, 0), thread (5, 0, 0)"

 private:
  static void FiberMain();
  void RunBlock(uint32_t block_idx);
  void PrepareShared();
  void Resume(CudaThread* thread);
  void SwitchAway(Fiber* from);  // to a fiber that can continue
  bool SameOperation(uint32_t first, uint32_t mask, WarpFunction function, void* (*lanes)[32]) const;
  void Release(uint32_t first, uint32_t count, ThreadPhase phase, uint32_t mask);
  void CheckAfterBlock();
  [[noreturn]] void AbortDeadlock();
  uint32_t Random(uint32_t below);
  void Shuffle(std::vector<uint32_t>* order);
  CudaThread* PopReady();

  const Grid* grid_ = nullptr;
  std::vector<CudaThread> threads_;
  std::vector<uint32_t> order_;     // in which threads begin
  std::vector<uint32_t> released_;  // scratch of Release
  std::vector<CudaThread*> ready_;  // a ring of a power of two
  uint32_t ready_head_ = 0, ready_count_ = 0;
  uint32_t num_threads_ = 0, next_unstarted_ = 0, num_ended_ = 0;
  std::vector<uint32_t> lanes_at_warp_;  // of each warp: which wait at a warp primitive
  bool newest_first_ = false;            // of the ready ones; and threads that have not begun come last

  int num_at_barrier_ = 0;
  Reduction barrier_kind_ = Reduction::kNone;
  int barrier_sum_ = 0;
  int barrier_result_[2] = {0, 0};  // by parity: a result is read before the barrier after the next ends
  uint32_t barrier_generation_ = 0;

  CudaThread* current_ = nullptr;
  Fiber main_;
  std::vector<Fiber*> fibers_;  // taken for this block
  std::vector<Fiber*> idle_;    // those of them with ended threads
  int fault_ = 0;
  uint64_t random_ = 0;
  uint64_t seed_ = 0;
  char* shared_end_ = nullptr;
  char* shared_base_ = nullptr;
};

// Catches SIGSEGV in kernels; made by the first Run on an OS thread.
void CatchFaults();

}  // namespace cuda_emulation
