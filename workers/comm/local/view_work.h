// Collectives on views by messages, for groups that communicate through host memory.  Used by communicator.cc alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

// The place in memory for the message of one rank.
struct Landing {
  int rank = 0;
  char* to = nullptr;
  int64_t bytes = 0;  // that must have come
};

// Wait leaves what `exchange` brings where `landings` say; its received() stays empty.  Without an exchange there is
// nothing to wait for.  `comm` must outlive the work; it is aborted when a message has another size (Internal).
std::unique_ptr<Work> MakeViewWork(Communicator* comm, const OpKey& key, std::unique_ptr<Work> exchange,
                                   std::vector<Landing> landings);

}  // namespace switchyard::comm
