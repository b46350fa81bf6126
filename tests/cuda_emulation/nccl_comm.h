// A communicator's inside: from the call to the stream.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_emulation/nccl_world.h"

namespace nccl_emulation {

// The part of a communicator that its launches share, as they may run after its end.
struct CommState {
  std::shared_ptr<World> world;
  int rank = 0;
  std::atomic<bool> aborted{false};
  std::atomic<bool> hangs{false};  // a thread is in a launch that only an abort ends, and holds no lock
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
// Whether this rank's next group end hangs, counted down by each.
bool NextGroupEndHangs(int rank);

void CountLive(int change);
void CountCompleted();
void CountLaunchThread();

}  // namespace nccl_emulation

struct ncclComm {
  ~ncclComm() { JoinLauncher(); }
  void JoinLauncher() {
    if (launcher.joinable()) launcher.join();
  }

  std::shared_ptr<nccl_emulation::CommState> state;
  std::string id;  // of its world
  int num_ranks = 0;
  int device = 0;
  bool blocking = false;

  std::mutex mu;  // below
  enum class Busy { kNo, kInit, kSplit, kLaunch, kFinalize } busy = Busy::kNo;
  int polls = 0;                    // of what it is busy with
  nccl_emulation::Fault fault;      // of its init or split
  std::unique_ptr<ncclComm> child;  // of the split under way
  ncclComm** child_to = nullptr;    // where it goes
  int num_splits = 0;
  std::vector<nccl_emulation::Op> staged;    // not on the stream yet; the launcher's while it runs
  cudaStream_t stream = nullptr;             // of staged
  std::thread launcher;                      // of a non-blocking group end
  std::atomic<bool> launched{false};         // it has ended
  ncclResult_t launch_result = ncclSuccess;  // means something where launched
  bool finalized = false;
  std::string last_error;
};
