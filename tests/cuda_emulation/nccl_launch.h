// Launches of NCCL's groups of calls on streams.
#pragma once

#include <mutex>

#include "tests/cuda_emulation/nccl_comm.h"

namespace nccl_emulation {

// Enqueues staged operations on their stream (or in the graph that is captured from it).  REQUIRES: comm->mu is held.
ncclResult_t PutOnStream(ncclComm* comm);

// Ends the process if `call` would be undefined: an invalid or ended handle, or two threads at once.
std::unique_lock<std::mutex> Enter(ncclComm* comm, const char* call);

}  // namespace nccl_emulation
