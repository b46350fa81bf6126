// What a worker's flags (main.cc) say of its role: checks, and what they set.
#pragma once

#include <string>

#include "workers/worker.h"

namespace switchyard {

// All problems of the flags of that role, one a line; empty if there are none.
std::string CheckServingFlags();
std::string CheckTrainingFlags();

// REQUIRES: CheckServingFlags() found nothing.  Without threads and form_device_group.
WorkerOptions ServingOptions();

}  // namespace switchyard
