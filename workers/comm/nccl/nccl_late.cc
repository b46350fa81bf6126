// The functions of NCCL that workers/comm/nccl calls: each passes its call on.
#include <nccl.h>

#include "workers/tensor/cuda/late_library.h"

namespace {

switchyard::LateLibrary library(SY_LATE_LIBRARY,
                                {"ncclGetErrorString", "ncclGetLastError", "ncclGetVersion", "ncclGetUniqueId",
                                 "ncclCommInitRankConfig", "ncclCommSplit", "ncclCommGetAsyncError", "ncclCommAbort",
                                 "ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv", "ncclAllReduce"});

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) { SY_CALL_LATE(library, ncclGetErrorString, result); }

const char* ncclGetLastError(ncclComm_t comm) { SY_CALL_LATE(library, ncclGetLastError, comm); }

ncclResult_t ncclGetVersion(int* version) { SY_CALL_LATE(library, ncclGetVersion, version); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { SY_CALL_LATE(library, ncclGetUniqueId, id); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  SY_CALL_LATE(library, ncclCommInitRankConfig, comm, ranks, id, rank, config);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  SY_CALL_LATE(library, ncclCommSplit, comm, color, key, made, config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  SY_CALL_LATE(library, ncclCommGetAsyncError, comm, error);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) { SY_CALL_LATE(library, ncclCommAbort, comm); }

ncclResult_t ncclGroupStart() { SY_CALL_LATE(library, ncclGroupStart); }

ncclResult_t ncclGroupEnd() { SY_CALL_LATE(library, ncclGroupEnd); }

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  SY_CALL_LATE(library, ncclSend, send, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  SY_CALL_LATE(library, ncclRecv, receive, count, type, peer, comm, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  SY_CALL_LATE(library, ncclAllReduce, send, receive, count, type, op, comm, stream);
}
