// The flags of a training worker that say what a step is, scaled (training_models.py makes them), and on which links.
#pragma once

#include "scheduler/jobs/comm_spec.h"
#include "tests/bench/training/links.h"
#include "tests/bench/training/step_shape.h"
#include "workers/comm/tcp/socket_communicator.h"

namespace switchyard::bench {

// Ends the program at a flag that is no number.
StepShape ShapeOfFlags();
Links LinksOfFlags();
jobs::CommunicationSpec SpecOfFlags(jobs::CommMode mode);
// Frames and buffers on connections on which rows overtake sums: scaled with pieces, as far as packets let them.
comm::SocketGroupOptions SocketsOfFlags(const comm::GroupOptions& group);

}  // namespace switchyard::bench
