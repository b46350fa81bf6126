#include "workers/ops/core/thread_scratch.h"

#include "workers/tensor/tensor.h"

namespace switchyard::ops {

void* ThreadScratch(ScratchUse use, int64_t bytes) {
  thread_local Buffer buffers[2];
  Buffer& buffer = buffers[static_cast<int>(use)];
  if (buffer.bytes() < bytes) buffer = Buffer(bytes, Device::Cpu());
  return buffer.data();
}

}  // namespace switchyard::ops
