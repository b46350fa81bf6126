#include "workers/tensor/thread_pool.h"

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "scheduler/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace switchyard {
namespace {

inline void CpuRelax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// About 50 µs: longer than the gap between two ops of a step, and little CPU time for an idle server.
constexpr int kSpins = 2000;

// With a gate a loop has at most so many parts, and a piece of a part takes at most this share of the gate's limit.
constexpr int64_t kPartsBehindGate = 256;
constexpr int kPiecesInLimit = 4;

}  // namespace

ThreadPool::ThreadPool(int num_threads, bool spin, YieldPoint* gate)
    : num_threads_(num_threads), spin_(spin && gate == nullptr), gate_(gate) {
  SY_CHECK_GE(num_threads, 1);
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  {
    absl::MutexLock lock(&mu_);
    generation_.fetch_add(1);
    wake_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Work() {
  const YieldingScope inside(gate_);
  for (;;) {
    Yield();
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= num_tasks_) return;
    (*fn_)(task);
  }
}

void ThreadPool::WorkerLoop() {
  if (gate_ != nullptr) MakeWay();
  uint64_t seen = 0;
  for (;;) {
    for (int spins = 0; spin_ && spins < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spins)
      CpuRelax();
    if (generation_.load(std::memory_order_acquire) == seen) {
      absl::MutexLock lock(&mu_);
      sleepers_.fetch_add(1);
      while (generation_.load(std::memory_order_acquire) == seen) wake_.Wait(&mu_);
      sleepers_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    Work();
    active_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void ThreadPool::RunAlone(int64_t num_tasks, absl::FunctionRef<void(int64_t)> fn) {
  const YieldingScope inside(gate_);
  for (int64_t task = 0; task < num_tasks; ++task) {
    Yield();
    fn(task);
  }
}

void ThreadPool::Run(int64_t num_tasks, absl::FunctionRef<void(int64_t)> fn) {
  if (num_tasks <= 0) return;
  if (num_threads_ == 1 || num_tasks == 1) return RunAlone(num_tasks, fn);
  fn_ = &fn;
  num_tasks_ = num_tasks;
  next_.store(0, std::memory_order_relaxed);
  active_.store(num_threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    absl::MutexLock lock(&mu_);
    wake_.SignalAll();
  }
  Work();
  // Every thread must have left Work before the next loop may reuse the fields.
  int spins = 0;
  while (active_.load(std::memory_order_acquire) != 0) {
    if (spin_ && ++spins < 100000) {
      CpuRelax();
    } else {
      AwaitGate();  // the others may wait there
      std::this_thread::yield();
    }
  }
}

void ThreadPool::ParallelFor(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> fn) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  // With several parts per thread a slow core takes fewer of them.
  const int64_t most = gate_ == nullptr ? 4 * num_threads_ : std::max<int64_t>(4 * num_threads_, kPartsBehindGate);
  const int64_t parts = std::clamp<int64_t>(n / grain, 1, most);
  if (gate_ == nullptr) return Run(parts, [&](int64_t part) { fn(n * part / parts, n * (part + 1) / parts); });
  std::atomic<int64_t> piece{grain};
  Run(parts, [&](int64_t part) { RunInPieces(n * part / parts, n * (part + 1) / parts, grain, &piece, fn); });
}

// A piece that takes too long halves those that follow, of all threads, down to the grain; a short one doubles them.
void ThreadPool::RunInPieces(int64_t begin, int64_t end, int64_t grain, std::atomic<int64_t>* piece,
                             absl::FunctionRef<void(int64_t, int64_t)> fn) const {
  const absl::Duration most = gate_->limit() / kPiecesInLimit;
  while (begin < end) {
    const int64_t wanted = piece->load(std::memory_order_relaxed);
    const int64_t count = end - begin < wanted + grain ? end - begin : wanted;  // no remainder below the grain
    const auto start = std::chrono::steady_clock::now();
    fn(begin, begin + count);
    const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - start);
    if (took > most) {
      piece->store(std::max(grain, wanted / 2), std::memory_order_relaxed);
    } else if (2 * took < most && count >= wanted) {
      piece->store(2 * wanted, std::memory_order_relaxed);
    }
    begin += count;
    if (begin < end) Yield();
  }
}

}  // namespace switchyard
