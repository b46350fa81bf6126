// Converts reports of training workers to plain values.
#pragma once

#include <cstdint>
#include <optional>

#include "server/jobs/trainer_client.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::server {

struct AttemptReport {
  int64_t epoch = 0;
  TrainingReport report;
};
// Returns nullopt if the message is no report on an attempt.
std::optional<AttemptReport> ReportOf(const v1::LinkRequest& message);

}  // namespace switchyard::server
