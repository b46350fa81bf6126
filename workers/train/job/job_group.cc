#include "workers/train/job/job_group.h"

#include "scheduler/jobs/reduce_policy.h"
#include "workers/comm/tcp/socket_communicator.h"

namespace switchyard::train {

absl::StatusOr<comm::Communicator*> JobGroup::Form(const comm::GroupOptions& options, jobs::CommMode mode,
                                                   comm::RendezvousStore* store) {
  return group_.Form(options.epoch, store, [&] {
    if (!jobs::OvertakesOnTheSocket(mode)) {
      return comm::FormSocketGroup({.group = options, .framing = comm::kSharingFrames, .socket = comm::kSharingSockets},
                                   store);
    }
    return comm::FormSocketGroup(
        {.group = options, .framing = comm::kOvertakingFrames, .socket = settings_, .traffic = traffic_}, store);
  });
}

}  // namespace switchyard::train
