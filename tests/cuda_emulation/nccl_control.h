// Faults and counters of the emulated NCCL for tests.  Thread-safe.
#pragma once

#include "nccl.h"

namespace nccl_emulation {

// The nth launch from now (1: the next) of rank `rank`, of any communicator, hangs its stream ...
void HangRank(int rank, int nth);
// ... and sets the communicator's asynchronous error.
void FailRank(int rank, int nth, ncclResult_t error);
// Its nth group end of a blocking communicator from now does not return before an abort.
void HangLaunch(int rank, int nth);
// Communicators that this rank begins (splits) from now on are never ready.
void StallInit(int rank);
void StallSplit(int rank);
// The same, with this error after a while.
void FailInit(int rank, ncclResult_t error);
// As over real NCCL's sockets: when a communicator ends, those of its peers that have launches under way get
// ncclRemoteError at once.  (Otherwise they hang, and only the group above knows.)
void NoticeEnds();
// Cancels all of the above.
void Reset();

// Communicators that were begun and neither destroyed nor aborted.
int NumLive();
// Launches that have run to their end, on all ranks, without those that an abort ended.
int NumCompleted();
// Threads that group ends have started, on all ranks.
int NumLaunchThreads();

}  // namespace nccl_emulation
