// The steps of FormNcclGroup that need no NCCL communicator yet.  Internal.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/comm/nccl/nccl_communicator.h"

namespace switchyard::comm {

absl::Status CheckNcclOptions(const NcclGroupOptions& options, const NcclHostGroups& host);
// Compares the settings and devices of all ranks; FailedPrecondition if they cannot form a group.
absl::Status CompareRanks(const NcclGroupOptions& options, Communicator* messages);
// Rank 0 makes NCCL's id, the others wait for it; they find it in the store or, without one, get it as a message.
absl::StatusOr<std::string> ShareNcclId(const NcclGroupOptions& options, Communicator* messages,
                                        RendezvousStore* store);

}  // namespace switchyard::comm
