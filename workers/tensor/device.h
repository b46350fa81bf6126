// Devices, which hold tensors and run ops, and streams, the order of ops on them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace switchyard {

class DeviceQueue;
class ThreadPool;

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  static constexpr Device Cpu() { return {}; }
  static constexpr Device Cuda(int index) { return {DeviceKind::kCuda, index}; }
  bool operator==(const Device& other) const { return kind == other.kind && index == other.index; }
  bool is_cpu() const { return kind == DeviceKind::kCpu; }
  std::string ToString() const { return is_cpu() ? "cpu" : absl::StrCat("cuda:", index); }
};

// An order of work: ops on one stream run in the order of their calls.  On the CPU a stream runs each op to its end on
// the pool's threads before the call returns; on other devices it enqueues ops (device_queue.h), which run later.
// A light handle that borrows pool and queue.  Thread-compatible.
class Stream {
 public:
  static Stream OnCpu(ThreadPool* pool) { return Stream(Device::Cpu(), pool, nullptr); }
  // pool: for the host's part of ops.
  static Stream On(DeviceQueue* queue, ThreadPool* pool);

  Device device() const { return device_; }
  ThreadPool& pool() const { return *pool_; }
  // null: the CPU.
  DeviceQueue* queue() const { return queue_; }
  // The driver's stream (a cudaStream_t); null on the CPU.
  void* handle() const;

 private:
  Stream(Device device, ThreadPool* pool, DeviceQueue* queue) : device_(device), pool_(pool), queue_(queue) {}

  Device device_;
  ThreadPool* pool_ = nullptr;    // borrowed
  DeviceQueue* queue_ = nullptr;  // borrowed
};

}  // namespace switchyard
