// The server's flags, which fill a ServerConfig.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/base/flags/flag_set.h"
#include "server/config.h"

namespace switchyard::server {

// Marks of flags that workers have, too, and that a server passes on to the workers that it starts.
inline constexpr uint32_t kToServingWorkers = 1;
inline constexpr uint32_t kToTrainingWorkers = 2;
inline constexpr uint32_t kToServingThatTrain = 4;  // only to serving workers that also train

// The flags set *config, which has to outlive them.
FlagSet FlagsOfServer(ServerConfig* config);

// The flags with one of the marks, with the values of `config`: "--dtype=bf16", …
std::vector<std::string> FlagsToWorkers(const ServerConfig& config, uint32_t marks);

}  // namespace switchyard::server
