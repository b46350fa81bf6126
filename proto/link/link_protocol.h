// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 20: masks of constrained sequences come after their plan.  23: an attempt's job may be a fork.
inline constexpr int kProtocolVersion = 23;

}  // namespace switchyard::link
