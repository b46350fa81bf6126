#include "workers/comm/nccl/nccl_ops.h"

#include "scheduler/base/check.h"
#include "workers/comm/local/reduce_work.h"

namespace switchyard {
namespace {

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    default:
      SY_CHECK(dtype == DType::kI64);  // what can be summed
      return ncclInt64;
  }
}

// Within a group a call of a non-blocking communicator may say that it is in progress; the group's end says how it
// went.
bool IsError(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

// A peer of zero bytes is skipped on both sides, as both know the size.
ncclResult_t AllToAll(const DeviceCollective& c, int rank, int world, ncclComm_t comm, cudaStream_t stream) {
  for (int step = 1; step < world; ++step) {
    // In another order on each rank, so that not all send to rank 0 first.
    const int to = (rank + step) % world;
    const int from = (rank + world - step) % world;
    if (c.send_bytes[to] > 0) {
      const ncclResult_t result = ncclSend(BytesAt(c.send, c.send_offsets[to]), static_cast<size_t>(c.send_bytes[to]),
                                           ncclUint8, to, comm, stream);
      if (IsError(result)) return result;
    }
    if (c.recv_bytes[from] > 0) {
      const ncclResult_t result = ncclRecv(BytesAt(c.recv, c.recv_offsets[from]),
                                           static_cast<size_t>(c.recv_bytes[from]), ncclUint8, from, comm, stream);
      if (IsError(result)) return result;
    }
  }
  return ncclSuccess;
}

// NCCL's own wants parts of one size.
ncclResult_t ReduceScatter(const DeviceCollective& c, int rank, int world, ncclComm_t comm, cudaStream_t stream) {
  const int64_t n = c.send.NumElements();
  const ncclDataType_t type = TypeOf(c.send.dtype());
  if (n % world == 0) {
    return ncclReduceScatter(c.send.raw(), c.recv.raw(), static_cast<size_t>(n / world), type, ncclSum, comm, stream);
  }
  for (int r = 0; r < world; ++r) {
    const PartOfRank part = PartOf(n, r, world);
    if (part.count == 0) continue;
    const ncclResult_t result =
        ncclReduce(BytesAt(c.send, part.begin * DTypeBytes(c.send.dtype())), r == rank ? c.recv.raw() : nullptr,
                   static_cast<size_t>(part.count), type, ncclSum, r, comm, stream);
    if (IsError(result)) return result;
  }
  return ncclSuccess;
}

}  // namespace

ncclResult_t CallNccl(const DeviceCollective& c, int rank, int world, ncclComm_t comm, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(NumBytes(c.send));
  switch (c.key.op) {
    case CommOp::kAllToAllSized:
      return AllToAll(c, rank, world, comm, stream);
    case CommOp::kReduceScatterSum:
      return ReduceScatter(c, rank, world, comm, stream);
    case CommOp::kAllReduceSum:
      return ncclAllReduce(c.send.raw(), c.recv.raw(), static_cast<size_t>(c.send.NumElements()),
                           TypeOf(c.send.dtype()), ncclSum, comm, stream);
    case CommOp::kAllGather:
      return ncclAllGather(c.send.raw(), c.recv.raw(), bytes, ncclUint8, comm, stream);
    default:
      SY_CHECK(c.key.op == CommOp::kBroadcast);
      return ncclBroadcast(c.send.raw(), c.recv.raw(), bytes, ncclUint8, c.key.root, comm, stream);
  }
}

}  // namespace switchyard
