// The flags of a training worker that say what a step is, scaled (training_models.py makes them), and on which links.
#pragma once

#include "scheduler/training/comm_spec.h"
#include "tests/bench/training/links.h"
#include "tests/bench/training/step_shape.h"

namespace switchyard::bench {

// Ends the program at a flag that is no number.
StepShape ShapeOfFlags();
Links LinksOfFlags();
CommunicationSpec SpecOfFlags(CommMode mode);

}  // namespace switchyard::bench
