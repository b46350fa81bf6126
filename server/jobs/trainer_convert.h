// What training workers say on their links, told as plain values.
#pragma once

#include "server/jobs/trainer_client.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::server {

// Tells `events` what a training worker says.  InvalidArgument: the message is a serving worker's.
absl::Status ReportTraining(WorkerId id, v1::LinkRequest* message, TrainerEvents* events);
// Whether only a training worker may say it.
bool IsOfTraining(const v1::LinkRequest& message);

}  // namespace switchyard::server
