// The communicator that Split makes: some ranks of a group, over its connections.  Used by communicator.cc alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

// members: ranks of `parent` (not owned, outlives the subgroup), in the subgroup's order, this rank among them.
std::unique_ptr<Communicator> MakeSubgroup(Communicator* parent, std::shared_ptr<MessagePool> pool,
                                           std::vector<int> members, uint32_t split_id);

}  // namespace switchyard::comm
