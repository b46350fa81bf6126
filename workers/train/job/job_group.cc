#include "workers/train/job/job_group.h"

#include "workers/comm/tcp/socket_communicator.h"

namespace switchyard::train {

absl::StatusOr<comm::Communicator*> JobGroup::Form(const comm::GroupOptions& options, comm::RendezvousStore* store) {
  return group_.Form(options.epoch, store, [&] {
    return comm::FormSocketGroup(
        {.group = options, .framing = comm::kOvertakingFrames, .socket = {}, .traffic = traffic_}, store);
  });
}

}  // namespace switchyard::train
