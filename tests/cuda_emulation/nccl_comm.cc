// Communicators: their begin and end, asynchronous errors, and the faults that tests inject.
#include "tests/cuda_emulation/nccl_comm.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "tests/cuda_emulation/nccl_control.h"
#include "tests/cuda_emulation/nccl_launch.h"
#include "tests/cuda_emulation/stream_queue.h"

namespace nccl_emulation {
namespace {

constexpr int kPollsOfInit = 3;
constexpr int kPollsOfLaunch = 2;
constexpr std::chrono::minutes kPatience{1};

struct PlannedFault {
  int launches_left;
  Fault fault;
};

std::mutex control_mu;
std::map<int, PlannedFault> planned;  // by rank; guarded by control_mu, as the next
std::map<int, Fault> planned_init;
std::atomic<int> live{0};
std::atomic<int> completed{0};

std::mutex handles_mu;
std::set<const ncclComm*> handles;

void Plan(int rank, int nth, Fault fault) {
  std::lock_guard lock(control_mu);
  planned[rank] = {nth, fault};
}

void Forget(ncclComm* comm) {
  {
    std::lock_guard lock(handles_mu);
    handles.erase(comm);
  }
  delete comm;
  CountLive(-1);
}

// As NCCL's end of a communicator: "keep polling until all graphs referencing us die".  What runs on the device goes on
// meanwhile.
void AwaitGraphs(const ncclComm& comm, const char* call) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (comm.state->captured > 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::fprintf(stderr, "nccl_emulation: %s of rank %d waits for %d launches in graphs that nobody destroys\n", call,
                   comm.state->rank, comm.state->captured.load());
      std::abort();
    }
    cuda_emulation::AdvanceDevice(comm.device);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The state of what a communicator is busy with, after one more look.  REQUIRES: comm->mu is held.
ncclResult_t Poll(ncclComm* comm) {
  if (const int error = comm->state->async_error; error != ncclSuccess) return static_cast<ncclResult_t>(error);
  ++comm->polls;
  switch (comm->busy) {
    case ncclComm::Busy::kNo:
      return ncclSuccess;
    case ncclComm::Busy::kInit:
      if (comm->init_fault.hangs || comm->polls < kPollsOfInit) return ncclInProgress;
      if (comm->init_fault.error != ncclSuccess) {
        comm->state->async_error = comm->init_fault.error;
        return comm->init_fault.error;
      }
      if (!comm->state->world->Complete()) return ncclInProgress;
      break;
    case ncclComm::Busy::kLaunch: {
      if (comm->polls < kPollsOfLaunch) return ncclInProgress;
      const ncclResult_t launched = PutOnStream(comm);
      if (launched != ncclSuccess) comm->state->async_error = launched;
      comm->busy = ncclComm::Busy::kNo;
      return launched;
    }
    case ncclComm::Busy::kFinalize:
      if (comm->state->outstanding > 0 || comm->state->captured > 0) return ncclInProgress;
      comm->finalized = true;
      break;
  }
  comm->busy = ncclComm::Busy::kNo;
  return ncclSuccess;
}

}  // namespace

void HangRank(int rank, int nth) { Plan(rank, nth, {.hangs = true}); }
void FailRank(int rank, int nth, ncclResult_t error) { Plan(rank, nth, {.hangs = true, .error = error}); }

void StallInit(int rank) {
  std::lock_guard lock(control_mu);
  planned_init[rank] = {.hangs = true};
}

void FailInit(int rank, ncclResult_t error) {
  std::lock_guard lock(control_mu);
  planned_init[rank] = {.error = error};
}

void Reset() {
  std::lock_guard lock(control_mu);
  planned.clear();
  planned_init.clear();
}

int NumLive() { return live; }
int NumCompleted() { return completed; }
void CountLive(int change) { live += change; }
void CountCompleted() { ++completed; }

Fault NextLaunchFault(int rank) {
  std::lock_guard lock(control_mu);
  const auto found = planned.find(rank);
  if (found == planned.end() || --found->second.launches_left > 0) return {};
  const Fault fault = found->second.fault;
  planned.erase(found);
  return fault;
}

Fault InitFault(int rank) {
  std::lock_guard lock(control_mu);
  const auto found = planned_init.find(rank);
  return found == planned_init.end() ? Fault{} : found->second;
}

std::unique_lock<std::mutex> Enter(ncclComm* comm, const char* call) {
  std::lock_guard lock(handles_mu);
  if (handles.count(comm) == 0) {
    std::fprintf(stderr, "nccl_emulation: %s of a communicator that was destroyed, aborted or never made\n", call);
    std::abort();
  }
  std::unique_lock<std::mutex> entered(comm->mu, std::try_to_lock);
  if (!entered) {
    std::fprintf(stderr, "nccl_emulation: %s while another thread is in a call of the same communicator\n", call);
    std::abort();
  }
  return entered;
}

}  // namespace nccl_emulation

using namespace nccl_emulation;  // NOLINT: the API's functions are global

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next{1};
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "emulated\n%d", next++);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) { return comm == nullptr ? "" : comm->last_error.c_str(); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int num_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (handle == nullptr || num_ranks < 1 || rank < 0 || rank >= num_ranks) return ncclInvalidArgument;
  *handle = nullptr;
  if (config != nullptr && (config->size != sizeof(ncclConfig_t) || config->magic != 0xcafebeef)) {
    return ncclInvalidArgument;
  }
  const std::shared_ptr<World> world = World::Of(std::string(id.internal, sizeof(id.internal)), num_ranks);
  if (world == nullptr) return ncclInvalidArgument;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  if (!world->Join(rank, device)) return ncclInvalidUsage;  // "Duplicate GPU detected"

  auto* comm = new ncclComm;
  comm->state = std::make_shared<CommState>();
  comm->state->world = world;
  comm->state->rank = rank;
  comm->num_ranks = num_ranks;
  comm->device = device;
  comm->blocking = config == nullptr || config->blocking != 0;
  comm->init_fault = InitFault(rank);
  comm->busy = ncclComm::Busy::kInit;
  CountLive(1);
  {
    std::lock_guard lock(handles_mu);
    handles.insert(comm);
  }
  *handle = comm;
  if (!comm->blocking) return ncclInProgress;
  for (;;) {  // as long as it takes
    std::lock_guard lock(comm->mu);
    if (const ncclResult_t result = Poll(comm); result != ncclInProgress) return result;
  }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const auto entered = Enter(comm, "ncclCommGetAsyncError");
  *error = Poll(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const auto entered = Enter(comm, "ncclCommFinalize");
  if (comm->busy != ncclComm::Busy::kNo || comm->finalized) return ncclInvalidArgument;
  comm->busy = ncclComm::Busy::kFinalize;
  comm->polls = 0;
  return comm->blocking ? Poll(comm) : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  {
    const auto entered = Enter(comm, "ncclCommDestroy");
    if (!comm->finalized && (comm->state->outstanding > 0 || comm->busy != ncclComm::Busy::kNo)) {
      std::fprintf(stderr, "nccl_emulation: ncclCommDestroy with work under way would block\n");
      std::abort();
    }
    AwaitGraphs(*comm, "ncclCommDestroy");
    comm->state->world->Leave(comm->state->rank);
  }
  Forget(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const auto entered = Enter(comm, "ncclCommAbort");
    comm->state->aborted = true;
    comm->state->world->Leave(comm->state->rank);
    cuda_emulation::NotifyProgress();
    AwaitGraphs(*comm, "ncclCommAbort");
  }
  Forget(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->num_ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->state->rank;
  return ncclSuccess;
}
