// Memory of the calling thread that is kept from call to call, so that a steady step allocates nothing.
//
// Internal to workers/ops.
#pragma once

#include <cstdint>

namespace switchyard::ops {

// An op's own memory and that of its tasks, of which the calling thread takes some too.
enum class ScratchUse : uint8_t { kOp, kTask };

// 64-byte aligned, undefined contents; good until the same thread's next call for the same use.
void* ThreadScratch(ScratchUse use, int64_t bytes);

}  // namespace switchyard::ops
