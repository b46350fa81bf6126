// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::server {

// Returns the least of what the machine has available, what RLIMIT_AS leaves, and what the limits of the process's
// cgroup and those around it (version 2) leave.  Never negative.  `root` is "/", but for tests.
int64_t MemoryHeadroom(const std::string& root = "/");

}  // namespace switchyard::server
