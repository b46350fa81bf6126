// A communicator's inside: from the call to the stream.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda_emulation/nccl_world.h"

namespace nccl_emulation {

// The part of a communicator that its launches share, as they may run after its end.
struct CommState {
  std::shared_ptr<World> world;
  int rank = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> async_error{ncclSuccess};
  std::atomic<int> outstanding{0};  // on a stream, not captured, not done
  std::atomic<int> captured{0};     // launches in graphs that are not destroyed, or still run
};

// A fault and the number of launches of this rank until it is due; kNone: none.
struct Fault {
  bool hangs = false;
  ncclResult_t error = ncclSuccess;
};
Fault NextLaunchFault(int rank);
// Of an init: stalls, or its error.
Fault InitFault(int rank);

void CountLive(int change);
void CountCompleted();

}  // namespace nccl_emulation

struct ncclComm {
  std::shared_ptr<nccl_emulation::CommState> state;
  int num_ranks = 0;
  int device = 0;
  bool blocking = false;

  std::mutex mu;  // below
  enum class Busy { kNo, kInit, kLaunch, kFinalize } busy = Busy::kNo;
  int polls = 0;  // of what it is busy with
  nccl_emulation::Fault init_fault;
  std::vector<nccl_emulation::Op> staged;  // not on the stream yet
  cudaStream_t stream = nullptr;           // of staged
  bool finalized = false;
  std::string last_error;
};
