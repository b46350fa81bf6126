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
std::map<int, int> planned_hangs;     // group ends left
std::map<int, Fault> planned_init, planned_split;
std::atomic<int> live{0};
std::atomic<int> completed{0};
std::atomic<int> launch_threads{0};
std::atomic<bool> ends_are_noticed{false};

std::mutex handles_mu;
std::set<const ncclComm*> handles;

void Plan(int rank, int nth, Fault fault) {
  std::lock_guard lock(control_mu);
  planned[rank] = {nth, fault};
}

Fault FaultOf(const std::map<int, Fault>& of, int rank) {
  std::lock_guard lock(control_mu);
  const auto found = of.find(rank);
  return found == of.end() ? Fault{} : found->second;
}

// Not one of the handles yet.  Null: the rank is taken, or another rank is on the device.
std::unique_ptr<ncclComm> NewComm(std::shared_ptr<World> world, const std::string& id, int num_ranks, int rank,
                                  int device, const ncclConfig_t* config) {
  if (!world->Join(rank, device)) return nullptr;
  auto comm = std::make_unique<ncclComm>();
  comm->state = std::make_shared<CommState>();
  comm->state->world = std::move(world);
  comm->state->rank = rank;
  comm->id = id;
  comm->num_ranks = num_ranks;
  comm->device = device;
  comm->blocking = config == nullptr || config->blocking != 0;
  return comm;
}

ncclComm* Publish(std::unique_ptr<ncclComm> comm) {
  CountLive(1);
  std::lock_guard lock(handles_mu);
  handles.insert(comm.get());
  return comm.release();
}

bool IsConfig(const ncclConfig_t* config) {
  return config == nullptr || (config->size == sizeof(ncclConfig_t) && config->magic == 0xcafebeef);
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
  if (ends_are_noticed && comm->state->outstanding > 0 && comm->state->world->SomeoneLeft()) {
    comm->state->async_error = ncclRemoteError;
  }
  if (const int error = comm->state->async_error; error != ncclSuccess) return static_cast<ncclResult_t>(error);
  ++comm->polls;
  switch (comm->busy) {
    case ncclComm::Busy::kNo:
      return ncclSuccess;
    case ncclComm::Busy::kInit:
      if (comm->fault.hangs || comm->polls < kPollsOfInit) return ncclInProgress;
      if (comm->fault.error != ncclSuccess) {
        comm->state->async_error = comm->fault.error;
        return comm->fault.error;
      }
      if (!comm->state->world->Complete()) return ncclInProgress;
      break;
    case ncclComm::Busy::kSplit:
      if (comm->fault.hangs || comm->polls < kPollsOfInit) return ncclInProgress;
      if (!comm->child->state->world->Complete()) return ncclInProgress;
      *comm->child_to = Publish(std::move(comm->child));
      break;
    case ncclComm::Busy::kLaunch:
      if (comm->polls < kPollsOfLaunch || !comm->launched) return ncclInProgress;
      comm->JoinLauncher();
      if (comm->launch_result != ncclSuccess) comm->state->async_error = comm->launch_result;
      comm->busy = ncclComm::Busy::kNo;
      return comm->launch_result;
    case ncclComm::Busy::kFinalize:
      if (comm->state->outstanding > 0 || comm->state->captured > 0) return ncclInProgress;
      comm->finalized = true;
      break;
  }
  comm->busy = ncclComm::Busy::kNo;
  return ncclSuccess;
}

// As long as it takes.
ncclResult_t PollToTheEnd(ncclComm* comm) {
  for (;;) {
    std::lock_guard lock(comm->mu);
    if (const ncclResult_t result = Poll(comm); result != ncclInProgress) return result;
  }
}

}  // namespace

void HangRank(int rank, int nth) { Plan(rank, nth, {.hangs = true}); }
void FailRank(int rank, int nth, ncclResult_t error) { Plan(rank, nth, {.hangs = true, .error = error}); }

void HangLaunch(int rank, int nth) {
  std::lock_guard lock(control_mu);
  planned_hangs[rank] = nth;
}

void StallInit(int rank) {
  std::lock_guard lock(control_mu);
  planned_init[rank] = {.hangs = true};
}

void StallSplit(int rank) {
  std::lock_guard lock(control_mu);
  planned_split[rank] = {.hangs = true};
}

void FailInit(int rank, ncclResult_t error) {
  std::lock_guard lock(control_mu);
  planned_init[rank] = {.error = error};
}

void NoticeEnds() { ends_are_noticed = true; }

void Reset() {
  ends_are_noticed = false;
  std::lock_guard lock(control_mu);
  planned.clear();
  planned_hangs.clear();
  planned_init.clear();
  planned_split.clear();
}

int NumLive() { return live; }
int NumCompleted() { return completed; }
int NumLaunchThreads() { return launch_threads; }
void CountLive(int change) { live += change; }
void CountCompleted() { ++completed; }
void CountLaunchThread() { ++launch_threads; }

Fault NextLaunchFault(int rank) {
  std::lock_guard lock(control_mu);
  const auto found = planned.find(rank);
  if (found == planned.end() || --found->second.launches_left > 0) return {};
  const Fault fault = found->second.fault;
  planned.erase(found);
  return fault;
}

bool NextGroupEndHangs(int rank) {
  std::lock_guard lock(control_mu);
  const auto found = planned_hangs.find(rank);
  if (found == planned_hangs.end() || --found->second > 0) return false;
  planned_hangs.erase(found);
  return true;
}

namespace {

// REQUIRES: handles_mu is held.
void ExpectHandle(ncclComm* comm, const char* call) {
  if (handles.count(comm) != 0) return;
  std::fprintf(stderr, "nccl_emulation: %s of a communicator that was destroyed, aborted or never made\n", call);
  std::abort();
}

}  // namespace

std::unique_lock<std::mutex> EnterToAbort(ncclComm* comm) {
  {
    std::lock_guard lock(handles_mu);
    ExpectHandle(comm, "ncclCommAbort");
  }
  return std::unique_lock<std::mutex>(comm->mu);
}

std::unique_lock<std::mutex> Enter(ncclComm* comm, const char* call) {
  std::lock_guard lock(handles_mu);
  ExpectHandle(comm, call);
  std::unique_lock<std::mutex> entered(comm->mu, std::try_to_lock);
  if (!entered || comm->state->hangs) {
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
  if (!IsConfig(config)) return ncclInvalidArgument;
  const std::string name(id.internal, sizeof(id.internal));
  const std::shared_ptr<World> world = World::Of(name, num_ranks);
  if (world == nullptr) return ncclInvalidArgument;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  std::unique_ptr<ncclComm> made = NewComm(world, name, num_ranks, rank, device, config);
  if (made == nullptr) return ncclInvalidUsage;  // "Duplicate GPU detected"
  made->fault = FaultOf(planned_init, rank);
  made->busy = ncclComm::Busy::kInit;
  ncclComm* const comm = *handle = Publish(std::move(made));
  return comm->blocking ? PollToTheEnd(comm) : ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t* config) {
  if (split == nullptr || !IsConfig(config) || color != 0 || key != 0) return ncclInvalidArgument;
  *split = nullptr;
  {
    const auto entered = Enter(comm, "ncclCommSplit");
    if (comm->busy != ncclComm::Busy::kNo || comm->finalized) return ncclInvalidArgument;
    const std::string name = comm->id + "/" + std::to_string(comm->num_splits++);
    const int rank = comm->state->rank;
    comm->child = NewComm(World::Of(name, comm->num_ranks), name, comm->num_ranks, rank, comm->device, config);
    if (comm->child == nullptr) return ncclInternalError;
    comm->child_to = split;
    comm->fault = FaultOf(planned_split, rank);
    comm->busy = ncclComm::Busy::kSplit;
    comm->polls = 0;
  }
  return comm->blocking ? PollToTheEnd(comm) : ncclInProgress;
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
    const auto entered = EnterToAbort(comm);
    comm->state->aborted = true;
    comm->JoinLauncher();
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
