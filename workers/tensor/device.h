// Where tensors live and where ops run.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace switchyard {

class ThreadPool;

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  static constexpr Device Cpu() { return {}; }
  static constexpr Device Cuda(int index) { return {DeviceKind::kCuda, index}; }
  bool operator==(const Device& other) const { return kind == other.kind && index == other.index; }
  std::string ToString() const { return kind == DeviceKind::kCpu ? "cpu" : absl::StrCat("cuda:", index); }
};

// An order of work.  Ops on one stream run in the order of their calls.  On the CPU a stream runs each op to its end on
// the pool's threads before the call returns, so there is nothing to wait for; on CUDA it will hold the driver's
// stream. Thread-compatible: one caller at a time.
class Stream {
 public:
  static Stream OnCpu(ThreadPool* pool) { return Stream(Device::Cpu(), pool); }

  Device device() const { return device_; }
  // REQUIRES: a CPU stream.
  ThreadPool& pool() const { return *pool_; }

 private:
  Stream(Device device, ThreadPool* pool) : device_(device), pool_(pool) {}

  Device device_;
  ThreadPool* pool_ = nullptr;  // borrowed
};

}  // namespace switchyard
