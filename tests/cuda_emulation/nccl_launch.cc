// The collectives and groups of them: what is checked at the call, staged at the group's end, and run by the stream.
#include "tests/cuda_emulation/nccl_launch.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "tests/cuda_emulation/stream_queue.h"

namespace nccl_emulation {
namespace {

// The group that this thread has open.
struct Call {
  ncclComm* comm;
  cudaStream_t stream;
  Op op;
};
thread_local int depth = 0;
thread_local std::vector<Call> calls;
thread_local ncclResult_t group_error = ncclSuccess;

// One captured launch, in all copies of its graph.
struct InGraph {
  explicit InGraph(std::shared_ptr<CommState> s) : state(std::move(s)) { ++state->captured; }
  ~InGraph() { --state->captured; }
  InGraph(const InGraph&) = delete;
  InGraph& operator=(const InGraph&) = delete;
  const std::shared_ptr<CommState> state;
};

// One launch when it runs.  Copied only before it has begun: each launch of a graph runs a copy.
struct Launch {
  std::shared_ptr<CommState> state;
  std::vector<Op> ops;
  std::shared_ptr<InGraph> in_graph;  // null: not captured
  std::shared_ptr<Waiting> waiting;
  bool hangs = false;

  std::optional<cudaError_t> operator()(std::chrono::microseconds) {
    if (state->aborted) return End();
    if (hangs) return std::nullopt;
    if (waiting == nullptr) {
      const Fault fault = NextLaunchFault(state->rank);
      hangs = fault.hangs;
      if (fault.error != ncclSuccess) state->async_error = fault.error;
      if (hangs) return std::nullopt;
      waiting = state->world->Post(state->rank, ops);
      cuda_emulation::NotifyProgress();
    }
    if (!state->world->Done(*waiting)) return std::nullopt;
    CountCompleted();
    return End();
  }

  cudaError_t End() {
    if (in_graph == nullptr) --state->outstanding;
    return cudaSuccess;
  }
};

bool IsReduction(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

ncclResult_t Check(const Call& call) {
  const Op& op = call.op;
  const bool wants_peer = op.kind == OpKind::kSend || op.kind == OpKind::kRecv || op.kind == OpKind::kReduce ||
                          op.kind == OpKind::kBroadcast;
  if (TypeBytes(op.type) == 0) return ncclInvalidArgument;
  if (wants_peer && (op.peer < 0 || op.peer >= call.comm->num_ranks)) return ncclInvalidArgument;
  const bool reads = op.kind != OpKind::kRecv && (op.kind != OpKind::kBroadcast || op.peer == call.comm->state->rank);
  const bool writes = op.kind != OpKind::kSend && (op.kind != OpKind::kReduce || op.peer == call.comm->state->rank);
  if (op.count > 0 && ((reads && op.from == nullptr) || (writes && op.to == nullptr))) return ncclInvalidArgument;
  const bool summable = op.type == ncclInt32 || op.type == ncclInt64 || op.type == ncclFloat32 ||
                        op.type == ncclFloat64 || op.type == ncclBfloat16;
  if (IsReduction(op.kind) && !summable) return ncclInvalidArgument;  // of this emulation, not of NCCL
  if (cuda_emulation::DeviceOfStream(call.stream) != call.comm->device) return ncclInvalidArgument;
  return ncclSuccess;
}

// Until an abort, which may end the communicator before this returns.
ncclResult_t Hang(const std::shared_ptr<CommState> state, std::unique_lock<std::mutex> entered) {
  state->hangs = true;
  entered.unlock();
  while (!state->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ncclInternalError;
}

ncclResult_t EndGroup() {
  const std::vector<Call> mine = std::exchange(calls, {});
  if (const ncclResult_t error = std::exchange(group_error, ncclSuccess); error != ncclSuccess) return error;
  ncclResult_t result = ncclSuccess;
  for (size_t i = 0; i < mine.size();) {
    ncclComm* const comm = mine[i].comm;
    auto entered = Enter(comm, "ncclGroupEnd");
    comm->stream = mine[i].stream;
    // (That the calls of one communicator stand together and on one stream is a limit of this emulation.)
    for (; i < mine.size() && mine[i].comm == comm; ++i) {
      if (mine[i].stream != comm->stream) return ncclInvalidUsage;
      comm->staged.push_back(mine[i].op);
    }
    if (comm->blocking) {
      if (NextGroupEndHangs(comm->state->rank)) return Hang(comm->state, std::move(entered));
      if (const ncclResult_t put = PutOnStream(comm); put != ncclSuccess) return put;
      continue;
    }
    comm->busy = ncclComm::Busy::kLaunch;
    comm->polls = 0;
    comm->launched = false;
    CountLaunchThread();
    comm->launcher = std::thread([comm] {
      (void)cudaSetDevice(comm->device);
      comm->launch_result = PutOnStream(comm);
      comm->launched = true;
    });
    result = ncclInProgress;
  }
  return result;
}

ncclResult_t Add(ncclComm* comm, cudaStream_t stream, const char* name, const Op& op) {
  if (comm == nullptr) return ncclInvalidArgument;
  const Call call{comm, stream, op};
  ncclResult_t checked = ncclSuccess;
  {
    const auto entered = Enter(comm, name);
    // Also NCCL says so: "Attempt to use communicator before the previous operation returned ncclSuccess".
    checked = comm->busy != ncclComm::Busy::kNo || comm->finalized ? ncclInvalidArgument : Check(call);
  }
  if (checked != ncclSuccess) {
    if (depth > 0 && group_error == ncclSuccess) group_error = checked;
    return checked;
  }
  calls.push_back(call);
  return depth > 0 ? ncclSuccess : EndGroup();
}

}  // namespace

ncclResult_t PutOnStream(ncclComm* comm) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(comm->stream, &capture) != cudaSuccess) return ncclUnhandledCudaError;
  Launch launch{comm->state, std::exchange(comm->staged, {}), nullptr, nullptr, false};
  if (capture == cudaStreamCaptureStatusNone) {
    ++comm->state->outstanding;
  } else {
    launch.in_graph = std::make_shared<InGraph>(comm->state);
  }
  const cudaError_t error = cuda_emulation::EnqueuePatient(comm->stream, "nccl", std::move(launch));
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // namespace nccl_emulation

using namespace nccl_emulation;  // NOLINT: the API's functions are global

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  return --depth > 0 ? ncclSuccess : EndGroup();
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add(comm, stream, "ncclSend", {OpKind::kSend, from, nullptr, count, type, peer});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return Add(comm, stream, "ncclRecv", {OpKind::kRecv, nullptr, to, count, type, peer});
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return Add(comm, stream, "ncclAllReduce", {OpKind::kAllReduce, from, to, count, type, -1});
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return Add(comm, stream, "ncclReduce", {OpKind::kReduce, from, to, count, type, root});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t recvcount, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return Add(comm, stream, "ncclReduceScatter", {OpKind::kReduceScatter, from, to, recvcount, type, -1});
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t sendcount, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return Add(comm, stream, "ncclAllGather", {OpKind::kAllGather, from, to, sendcount, type, -1});
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return Add(comm, stream, "ncclBroadcast", {OpKind::kBroadcast, from, to, count, type, root});
}
