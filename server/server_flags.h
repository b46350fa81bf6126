// The server's flags: what a ServerConfig is filled from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/base/flags/flag_set.h"
#include "server/config.h"

namespace switchyard::server {

// Marks of flags that a worker has, too, and that a server passes on to the workers that it starts.
inline constexpr uint32_t kToServingWorkers = 1;
inline constexpr uint32_t kToTrainingWorkers = 2;
inline constexpr uint32_t kToServingThatTrain = 4;  // of serving workers to those alone

// They set *config, which has to outlive them.
FlagSet FlagsOfServer(ServerConfig* config);

// "--dtype=bf16", …: those with one of the marks, as `config` has them.
std::vector<std::string> FlagsToWorkers(const ServerConfig& config, uint32_t marks);

}  // namespace switchyard::server
