// A fixed team of threads that runs one parallel loop at a time, for the ops of a CPU's stream.
//
// The caller is thread 0 of the team.  Between loops the others spin for a short time (a decode step has hundreds of
// small loops), then sleep.  With `spin = false`, for more teams than cores, they sleep at once.  Ops give every row
// the same bits on any thread.
// With a gate (yield_point.h) all threads pass it before each task and wherever a long task yields, and sleep there
// while it is shut.  The team's own have a low priority (MakeWay).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "workers/tensor/yield_point.h"

namespace switchyard {

class ThreadPool {
 public:
  // num_threads >= 1, the caller included.  gate: borrowed; null: none.
  explicit ThreadPool(int num_threads, bool spin = true, YieldPoint* gate = nullptr);
  ~ThreadPool();

  int num_threads() const { return num_threads_; }
  // Blocks until the gate, if there is one, is open.  Of a thread that runs no task.
  void AwaitGate() const {
    if (gate_ != nullptr) gate_->AwaitOpen();
  }

  // Passes the gate.  A task that computes for milliseconds calls it every few milliseconds.  REQUIRES: inside a task.
  void Yield() const {
    if (gate_ != nullptr) gate_->Pass();
  }

  // Calls fn(task) once for every task in [0, num_tasks) and returns when all are done.  Threads draw tasks one by one
  // in rising order, which balances unequal ones.  REQUIRES: not called from inside a task; one caller at a time.
  void Run(int64_t num_tasks, absl::FunctionRef<void(int64_t task)> fn);

  // Splits [0, n) into ranges of at least `grain` (but the last) and calls fn(begin, end).  With a gate, ranges are so
  // short, if the grain allows, that fn need not pass the gate.
  void ParallelFor(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> fn);

 private:
  void WorkerLoop();
  void RunInPieces(int64_t begin, int64_t end, int64_t grain, std::atomic<int64_t>* piece,
                   absl::FunctionRef<void(int64_t, int64_t)> fn) const;
  void RunAlone(int64_t num_tasks, absl::FunctionRef<void(int64_t task)> fn);
  void Work();

  const int num_threads_;
  const bool spin_;
  YieldPoint* const gate_;
  std::vector<std::thread> threads_;

  // A generation number opens a loop; tasks are drawn from next_; the last thread to finish closes the loop.
  std::atomic<uint64_t> generation_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int> active_{0};
  int64_t num_tasks_ = 0;
  const absl::FunctionRef<void(int64_t)>* fn_ = nullptr;
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  absl::Mutex mu_;
  absl::CondVar wake_;
};

}  // namespace switchyard
