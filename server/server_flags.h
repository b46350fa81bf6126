// Defines the server's flags, which fill a ServerConfig.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/base/flags/flag_set.h"
#include "server/config.h"

namespace switchyard::server {

// Marks of flags that a server passes on to the workers that it starts, which have the same flags.
inline constexpr uint32_t kToServingWorkers = 1;
inline constexpr uint32_t kToTrainingWorkers = 2;
inline constexpr uint32_t kToServingThatTrain = 4;  // only to serving workers that also train

// Returns the flags, which set *config and borrow it.
FlagSet FlagsOfServer(ServerConfig* config);

// Returns the flags with one of the marks as arguments, with `config`'s values: "--dtype=bf16", …
std::vector<std::string> FlagsToWorkers(const ServerConfig& config, uint32_t marks);

}  // namespace switchyard::server
