// Memory of the calling thread that is kept between calls, so that a steady step allocates nothing.  Internal to
// workers/ops.
#pragma once

#include <cstdint>

namespace switchyard::ops {

// An op's own memory and its tasks' memory differ, as the calling thread runs tasks, too.
enum class ScratchUse : uint8_t { kOp, kTask };

// 64-byte aligned, undefined contents; valid until the same thread's next call for the same use.
void* ThreadScratch(ScratchUse use, int64_t bytes);

}  // namespace switchyard::ops
