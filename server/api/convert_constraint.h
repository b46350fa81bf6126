// Converts what an output must be (the message Constraint).
#pragma once

#include "absl/status/status.h"
#include "server/api/convert.h"

namespace switchyard::server {

// Compiles it, on the calling thread.  REQUIRES: the stop ids are converted.
absl::Status ConvertConstraint(const v1::GenerateRequest& message, const ConvertArgs& args, InferenceRequest* out);

}  // namespace switchyard::server
