#include "tests/cuda_emulation/block_runner.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_emulation/control.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace cuda_emulation {
namespace {

constexpr size_t kMaxShared = 232448;  // 227 KiB
constexpr size_t kSharedMapping = 256 << 10;
constexpr size_t kSharedAlign = 128;

std::string Text(uint3 v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

uint3 Position(uint64_t idx, dim3 of) {
  return {static_cast<unsigned>(idx % of.x), static_cast<unsigned>(idx / of.x % of.y),
          static_cast<unsigned>(idx / of.x / of.y)};
}

}  // namespace

BlockRunner& BlockRunner::OfThisThread() {
  static thread_local BlockRunner runner;
  return runner;
}

int RunGrid(const Grid& grid) { return BlockRunner::OfThisThread().Run(grid); }

uint32_t BlockRunner::Random(uint32_t below) {
  random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<uint32_t>(((random_ >> 32) * below) >> 32);
}

void BlockRunner::Shuffle(std::vector<uint32_t>* order) {
  if (seed_ == 0) return;
  for (uint32_t i = static_cast<uint32_t>(order->size()); i > 1; --i) std::swap((*order)[i - 1], (*order)[Random(i)]);
}

int BlockRunner::Run(const Grid& grid) {
  CatchFaults();
  grid_ = &grid;
  fault_ = 0;
  seed_ = Seed();
  random_ = seed_ * 0x9E3779B97F4A7C15ull + 1;
  num_threads_ = grid.block.x * grid.block.y * grid.block.z;
  threads_.resize((num_threads_ + 31) / 32 * 32);
  uint32_t ring = 1;
  while (ring < num_threads_) ring *= 2;
  ready_.assign(ring, nullptr);
  blockDim = grid.block;
  gridDim = grid.grid;
  PrepareShared();
  const uint64_t num_blocks = static_cast<uint64_t>(grid.grid.x) * grid.grid.y * grid.grid.z;
  std::vector<uint32_t> blocks(num_blocks);
  for (uint64_t i = 0; i < num_blocks; ++i) blocks[i] = static_cast<uint32_t>(i);
  Shuffle(&blocks);
  for (uint64_t i = 0; i < num_blocks && fault_ == 0; ++i) RunBlock(blocks[i]);
  return fault_;
}

void BlockRunner::PrepareShared() {
  if (shared_end_ == nullptr) {
    void* memory = mmap(nullptr, kSharedMapping + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    shared_end_ = static_cast<char*>(memory) + kSharedMapping;
    if (mprotect(shared_end_, 4096, PROT_NONE) != 0) std::abort();
  }
  static_assert(kMaxShared + kSharedAlign <= kSharedMapping);
  shared_base_ = shared_end_ - (grid_->shared_bytes + kSharedAlign - 1) / kSharedAlign * kSharedAlign;
}

bool BlockRunner::IsGuardOfShared(const void* address) const {
  const char* byte = static_cast<const char*>(address);
  return shared_end_ != nullptr && byte >= shared_end_ && byte < shared_end_ + 4096;
}

void BlockRunner::RunBlock(uint32_t block_idx) {
  blockIdx = Position(block_idx, grid_->grid);
  std::memset(shared_base_, 0xFF, static_cast<size_t>(shared_end_ - shared_base_));
  order_.resize(num_threads_);
  for (uint32_t i = 0; i < num_threads_; ++i) {
    CudaThread& thread = threads_[i];
    thread.phase = ThreadPhase::kUnstarted;
    thread.waited_for_preceding = false;
    thread.position = Position(i, grid_->block);
    thread.copies.clear();
    thread.open_group = 0;
    thread.wgmma.Reset();
    order_[i] = i;
  }
  for (size_t i = num_threads_; i < threads_.size(); ++i) threads_[i].phase = ThreadPhase::kEnded;
  Shuffle(&order_);
  newest_first_ = seed_ != 0 && Random(2) == 1;
  ready_head_ = ready_count_ = next_unstarted_ = num_ended_ = 0;
  num_at_barrier_ = 0;
  lanes_at_warp_.assign(threads_.size() / 32, 0);
  SwitchAway(&main_);
  for (Fiber* fiber : fibers_) GiveBackFiber(fiber);
  fibers_.clear();
  idle_.clear();
  current_ = nullptr;
  if (fault_ == 0) CheckAfterBlock();
}

void BlockRunner::CheckAfterBlock() {
  if (!grid_->dependent) return;
  for (uint32_t i = 0; i < num_threads_; ++i) {
    if (threads_[i].waited_for_preceding) return;
  }
  std::fprintf(stderr,
               "cuda_emulation: kernel %s, block %s: launched as dependent, but no thread called "
               "WaitForPrecedingKernel()\n",
               KernelName(grid_->kernel).c_str(), Text(blockIdx).c_str());
  std::abort();
}

void BlockRunner::Resume(CudaThread* thread) {
  current_ = thread;
  threadIdx = thread->position;
}

void BlockRunner::FiberMain() {
  BlockRunner& runner = OfThisThread();
  Fiber* self = runner.fibers_.back();
  for (;;) {
    while (runner.next_unstarted_ < runner.num_threads_) {
      CudaThread* thread = &runner.threads_[runner.order_[runner.next_unstarted_++]];
      thread->fiber = self;
      thread->phase = ThreadPhase::kReady;
      runner.Resume(thread);
      runner.grid_->call_kernel();
      runner.current_->phase = ThreadPhase::kEnded;
      ++runner.num_ended_;
      if (runner.newest_first_ && runner.ready_count_ > 0) break;
    }
    runner.idle_.push_back(self);
    runner.SwitchAway(self);
  }
}

CudaThread* BlockRunner::PopReady() {
  const uint32_t mask = static_cast<uint32_t>(ready_.size()) - 1;
  if (newest_first_) return ready_[(ready_head_ + --ready_count_) & mask];
  CudaThread* thread = ready_[ready_head_ & mask];
  ++ready_head_;
  --ready_count_;
  return thread;
}

void BlockRunner::SwitchAway(Fiber* from) {
  if (ready_count_ > 0) {
    CudaThread* next = PopReady();
    Resume(next);
    if (next->fiber != from) SwitchFiber(from, next->fiber);
  } else if (next_unstarted_ < num_threads_) {
    Fiber* fiber = nullptr;
    if (idle_.empty()) {
      fiber = TakeFiber(&FiberMain);
      fibers_.push_back(fiber);
    } else {
      fiber = idle_.back();
      idle_.pop_back();
    }
    if (fiber != from) SwitchFiber(from, fiber);
  } else if (num_ended_ == num_threads_) {
    SwitchFiber(from, &main_);
  } else {
    AbortDeadlock();
  }
}

// Makes ready, in an order of the seed, those of `count` threads from `first` that are in `phase` and in `mask` (of the
// warp).
void BlockRunner::Release(uint32_t first, uint32_t count, ThreadPhase phase, uint32_t mask) {
  released_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    CudaThread& thread = threads_[first + i];
    if (thread.phase != phase || (phase == ThreadPhase::kAtWarp && !(mask >> i & 1))) continue;
    thread.phase = ThreadPhase::kReady;
    released_.push_back(first + i);
  }
  Shuffle(&released_);
  const uint32_t ring = static_cast<uint32_t>(ready_.size()) - 1;
  for (uint32_t i : released_) ready_[(ready_head_ + ready_count_++) & ring] = &threads_[i];
}

int BlockRunner::Barrier(Reduction kind, int value) {
  CudaThread* thread = current_;
  thread->waits_at = kind == Reduction::kNone  ? "__syncthreads"
                     : kind == Reduction::kOr  ? "__syncthreads_or"
                     : kind == Reduction::kAnd ? "__syncthreads_and"
                                               : "__syncthreads_count";
  thread->phase = ThreadPhase::kAtBarrier;
  if (num_at_barrier_ == 0) {
    barrier_kind_ = kind;
    barrier_sum_ = 0;
  }
  if (kind != barrier_kind_) AbortDeadlock();
  barrier_sum_ += value != 0;
  const uint32_t generation = barrier_generation_;
  if (++num_at_barrier_ == static_cast<int>(num_threads_)) {
    barrier_result_[generation & 1] = kind == Reduction::kOr    ? barrier_sum_ != 0
                                      : kind == Reduction::kAnd ? barrier_sum_ == num_at_barrier_
                                                                : barrier_sum_;
    num_at_barrier_ = 0;
    ++barrier_generation_;
    Release(0, num_threads_, ThreadPhase::kAtBarrier, 0);
  }
  SwitchAway(thread->fiber);
  return barrier_result_[generation & 1];
}

void BlockRunner::WarpOp(const char* name, uint32_t mask, WarpFunction function, void* lane) {
  CudaThread* thread = current_;
  const uint32_t self = LaneOfCurrent();
  const uint32_t first = static_cast<uint32_t>(thread - threads_.data()) - self;
  if (first + 32 > num_threads_) mask &= (1u << (num_threads_ - first)) - 1;
  if (!(mask >> self & 1)) {
    std::fprintf(stderr, "cuda_emulation: %s: %s with mask 0x%08x, which lacks the calling lane %u\n", Where().c_str(),
                 name, mask, self);
    std::abort();
  }
  thread->phase = ThreadPhase::kAtWarp;
  thread->waits_at = name;
  thread->mask = mask;
  thread->function = function;
  thread->lane = lane;
  uint32_t& waiting = lanes_at_warp_[first / 32];
  waiting |= 1u << self;
  void* lanes[32] = {};
  if ((waiting & mask) == mask && SameOperation(first, mask, function, &lanes)) {
    function(lanes, mask);
    waiting &= ~mask;
    Release(first, 32, ThreadPhase::kAtWarp, mask);
  }
  SwitchAway(thread->fiber);
}

// Whether the lanes of `mask`, which all wait, wait for the same operation.
bool BlockRunner::SameOperation(uint32_t first, uint32_t mask, WarpFunction function, void* (*lanes)[32]) const {
  for (uint32_t i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    const CudaThread& other = threads_[first + i];
    if (other.mask != mask || other.function != function) return false;
    (*lanes)[i] = other.lane;
  }
  return true;
}

void BlockRunner::Yield() {
  CudaThread* thread = current_;
  if (ready_count_ == 0 && next_unstarted_ == num_threads_) return;
  const uint32_t ring = static_cast<uint32_t>(ready_.size()) - 1;
  if (newest_first_) --ready_head_;  // after all others
  ready_[(newest_first_ ? ready_head_ : ready_head_ + ready_count_) & ring] = thread;
  ++ready_count_;
  if (newest_first_ && ready_count_ == 1) newest_first_ = false;
  SwitchAway(thread->fiber);
}

uint32_t BlockRunner::LanesLeft() const {
  const size_t first = static_cast<size_t>(current_ - threads_.data()) / 32 * 32;
  uint32_t mask = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    if (threads_[first + i].phase != ThreadPhase::kEnded) mask |= 1u << i;
  }
  return mask;
}

bool BlockRunner::HasUnfencedCopies() const {
  for (uint32_t i = 0; i < num_threads_; ++i) {
    if (threads_[i].wgmma.copies_unfenced) return true;
  }
  return false;
}

std::string BlockRunner::Where() const {
  return "kernel " + KernelName(grid_->kernel) + ", block " + Text(blockIdx) + ", thread " + Text(threadIdx);
}

void BlockRunner::Fault(int error, const std::string& why) {
  std::fprintf(stderr, "cuda_emulation: %s: %s\n", Where().c_str(), why.c_str());
  fault_ = error;
  Fiber abandoned;
  abandoned.stack = current_->fiber->stack;
  SwitchFiber(&abandoned, &main_);
  std::abort();
}

void BlockRunner::AbortDeadlock() {
  std::fprintf(stderr, "cuda_emulation: deadlock in kernel %s, block %s of %u threads:\n",
               KernelName(grid_->kernel).c_str(), Text(blockIdx).c_str(), num_threads_);
  int lines = 0;
  for (uint32_t i = 0; i < num_threads_ && lines < 40; ++lines) {
    const CudaThread& thread = threads_[i];
    auto same = [&](const CudaThread& other) {
      if (other.phase != thread.phase) return false;
      if (thread.phase == ThreadPhase::kAtWarp) return other.mask == thread.mask && other.function == thread.function;
      return thread.phase == ThreadPhase::kEnded || other.waits_at == thread.waits_at;
    };
    uint32_t last = i;
    while (last + 1 < num_threads_ && same(threads_[last + 1])) ++last;
    std::fprintf(stderr, "  thread %s to %s: ", Text(thread.position).c_str(), Text(threads_[last].position).c_str());
    if (thread.phase == ThreadPhase::kEnded) {
      std::fprintf(stderr, "ended\n");
    } else if (thread.phase == ThreadPhase::kAtWarp) {
      std::fprintf(stderr, "at %s with mask 0x%08x\n", thread.waits_at, thread.mask);
    } else {
      std::fprintf(stderr, "at %s\n", thread.waits_at == nullptr ? "its begin" : thread.waits_at);
    }
    i = last + 1;
  }
  std::abort();
}

}  // namespace cuda_emulation
