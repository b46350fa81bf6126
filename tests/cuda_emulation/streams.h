// Streams inside: queues of items, marks in them, and who runs them.
//
// A Mark is a place in a stream: "the first `count` items are done".  An item has marks that must be done before it
// runs.  A thread that waits for a mark runs that stream's items, and those that they depend on; if another OS thread
// runs the stream already, it waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/cuda_emulation/stream_queue.h"

namespace cuda_emulation {

struct Capture;

struct Mark {
  std::shared_ptr<Stream> stream;
  uint64_t count = 0;
  bool Done() const;
};

struct Item {
  const char* name;
  PatientWork work;
  std::vector<Mark> after;
};

struct Stream {
  int device = 0;
  unsigned flags = cudaStreamDefault;
  int priority = 0;
  std::thread::id creator;
  bool legacy = false;                 // the stream 0 of its device
  std::atomic<bool> destroyed{false};  // its handle is destroyed; its items still run

  std::mutex mu;
  std::deque<Item> items;  // the first may be running
  std::atomic<uint64_t> num_enqueued{0};
  std::atomic<uint64_t> num_done{0};
  bool running = false;
  std::thread::id runner;

  // While it is captured; guarded by the lock of all captures.
  std::shared_ptr<Capture> capture;
  std::vector<int> capture_tail;  // the nodes that its next one comes after

  bool blocking() const { return !legacy && !(flags & cudaStreamNonBlocking); }
};

// The stream of a handle; null if it is none.  Stream 0 and cudaStreamPerThread are made when first asked for.
std::shared_ptr<Stream> FindStream(cudaStream_t handle);
std::vector<std::shared_ptr<Stream>> StreamsOfDevice(int device);
std::shared_ptr<Stream> AddStream(int device, unsigned flags, int priority);
void ForgetStream(const std::shared_ptr<Stream>& stream);

// Puts an item at the end: of the stream, or of the graph that is being captured from it.  Also for items without work
// of their own.
cudaError_t EnqueueItem(const std::shared_ptr<Stream>& stream, Item item);
Mark EndOf(const std::shared_ptr<Stream>& stream);

// Runs until the mark is done.  Returns the error of the stream's device; cudaErrorNotPermitted if the calling thread
// is within an item of that stream.  Aborts after two minutes without progress, saying what it waits for.
cudaError_t RunUntil(const Mark& mark);
void RunOne(const std::shared_ptr<Stream>& stream);  // at most one item, and does not wait
cudaError_t RunDevice(int device);
void DropPendingWork();

}  // namespace cuda_emulation
