#include "workers/train/job/job_group.h"

#include "scheduler/jobs/reduce_policy.h"
#include "workers/comm/gloo/gloo_communicator.h"
#include "workers/comm/tcp/socket_communicator.h"

namespace switchyard::train {

absl::StatusOr<comm::Communicator*> JobGroup::Form(const comm::GroupOptions& options, jobs::CommMode mode,
                                                   comm::RendezvousStore* store) {
  return group_.Form(options.epoch, store, [&] {
    return jobs::OvertakesOnTheSocket(mode)
               ? comm::FormSocketGroup({.group = options, .socket = settings_, .traffic = traffic_}, store)
               : comm::FormGlooGroup(options, store);
  });
}

}  // namespace switchyard::train
