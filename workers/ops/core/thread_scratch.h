// Memory of the calling thread that is kept between calls, so that a steady step allocates nothing.  Internal to
// workers/ops.
#pragma once

#include <cstdint>

namespace switchyard::ops {

// Memory of an op, and of its tasks, some of which the calling thread runs, too.
enum class ScratchUse : uint8_t { kOp, kTask };

// 64-byte aligned, undefined contents; good until the same thread's next call for the same use.
void* ThreadScratch(ScratchUse use, int64_t bytes);

}  // namespace switchyard::ops
