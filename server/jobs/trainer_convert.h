// The training messages of a worker's link as plain values, and back.
#pragma once

#include "server/jobs/trainer_client.h"
#include "switchyard/v1/train_link.pb.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard {

v1::StartTraining ToProto(const TrainingSeat& seat);
v1::StopTraining ToProto(int64_t epoch, StopMode kind);
TrainingEnd FromProto(const v1::TrainingEnded& message);

// Tells `events` what a training worker says.  InvalidArgument: the message is a serving worker's.
absl::Status TellTraining(WorkerId id, v1::LinkRequest* message, TrainerEvents* events);
// Whether only a training worker may say it.
bool IsOfTraining(const v1::LinkRequest& message);

}  // namespace switchyard
