// A group of ranks that are threads of one process: messages are passed by pointer, and nothing is copied.
//
// For tests, and for a worker that is alone (MakeSoloCommunicator: no locks, no waits).
#pragma once

#include <memory>
#include <vector>

#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

// World of one.
std::unique_ptr<Communicator> MakeSoloCommunicator(int64_t epoch = 1);

// Element r is for rank r's thread.  The ranks share a mailbox that lives as long as the last of them.
std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int world, int64_t epoch = 1);

}  // namespace switchyard::comm
