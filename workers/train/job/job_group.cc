#include "workers/train/job/job_group.h"

#include "scheduler/jobs/reduce_policy.h"
#include "workers/comm/gloo/gloo_communicator.h"
#include "workers/comm/tcp/socket_communicator.h"

namespace switchyard {

absl::StatusOr<Communicator*> JobGroup::Form(const GroupOptions& options, CommMode mode, RendezvousStore* store) {
  return group_.Form(options.epoch, store, [&] {
    return OvertakesOnTheSocket(mode)
               ? FormSocketGroup({.group = options, .socket = settings_, .traffic = traffic_}, store)
               : FormGlooGroup(options, store);
  });
}

}  // namespace switchyard
