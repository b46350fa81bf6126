// A DeviceCollective as NCCL's calls.  Internal to the NCCL communicator.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include "workers/comm/core/device_collective.h"

namespace switchyard::comm {

// Calls NCCL for all but this rank's own part of a sized exchange, which the caller copies.  REQUIRES: between
// ncclGroupStart and ncclGroupEnd; a checked collective (communicator.h), not a fence.
ncclResult_t CallNccl(const DeviceCollective& collective, int rank, int world, ncclComm_t comm, cudaStream_t stream);

}  // namespace switchyard::comm
