// How many processors this process may use at once.
#pragma once

#include <string>

namespace switchyard {

// The processors of its affinity mask, at most its control group's quota (cpu.max, rounded up; of every group above it,
// too).  At least 1.
int UsableCores();

// The quota alone, in processors; 0 = none.  `mount`: where cgroup v2 (or v1's cpu controller) is mounted; `self`: a
// file such as /proc/self/cgroup, that says which group this is.
double CpuQuota(const std::string& mount, const std::string& self);

}  // namespace switchyard
