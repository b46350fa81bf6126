#include "workers/comm/nccl/nccl_ops.h"

#include "scheduler/base/check.h"

namespace switchyard::comm {
namespace {

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBf16:
      return ncclBfloat16;
    default:
      SY_CHECK(dtype == DType::kI64);  // the last type that can be summed
      return ncclInt64;
  }
}

// A peer of zero bytes is skipped on both sides, as both know the size.
ncclResult_t Exchange(const DeviceCollective& c, int rank, int world, ncclComm_t comm, cudaStream_t stream) {
  for (int step = 1; step < world; ++step) {
    // Each rank has another order, so that not all send to rank 0 first.
    const int to = (rank + step) % world;
    const int from = (rank + world - step) % world;
    if (c.send_bytes[to] > 0) {
      const ncclResult_t result = ncclSend(BytesAt(c.send, c.send_offsets[to]), static_cast<size_t>(c.send_bytes[to]),
                                           ncclUint8, to, comm, stream);
      if (result != ncclSuccess) return result;
    }
    if (c.recv_bytes[from] > 0) {
      const ncclResult_t result = ncclRecv(BytesAt(c.recv, c.recv_offsets[from]),
                                           static_cast<size_t>(c.recv_bytes[from]), ncclUint8, from, comm, stream);
      if (result != ncclSuccess) return result;
    }
  }
  return ncclSuccess;
}

}  // namespace

ncclResult_t CallNccl(const DeviceCollective& c, int rank, int world, ncclComm_t comm, cudaStream_t stream) {
  if (c.key.op != CommOp::kAllReduceSum) return Exchange(c, rank, world, comm, stream);
  return ncclAllReduce(c.send.raw(), c.recv.raw(), static_cast<size_t>(c.send.NumElements()), TypeOf(c.send.dtype()),
                       ncclSum, comm, stream);
}

}  // namespace switchyard::comm
