// Launches of NCCL's groups of calls on streams.
#pragma once

#include <mutex>

#include "tests/cuda_emulation/nccl_comm.h"

namespace nccl_emulation {

// What is staged goes on its stream (or into the graph that is captured from it).  REQUIRES: comm->mu is held, or this
// is its launcher.
ncclResult_t PutOnStream(ncclComm* comm);

// Ends the process if `call` would be undefined: an invalid or ended handle, or two threads at once.
std::unique_lock<std::mutex> Enter(ncclComm* comm, const char* call);
// Of an abort: another thread may be launching.
std::unique_lock<std::mutex> EnterToAbort(ncclComm* comm);

}  // namespace nccl_emulation
