// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 20: masks of constrained sequences come after their plan.  23: an attempt's job may be a fork.  24: evaluation has
// named sets, and may end a job early; parts of a model are trained, or adapters of it.  25: preferences,
// dropout, sharded dense state.  26: sequences have adapters, specs experts' replicas.  27: specs have no mode.
// 28: there is no granularity "profile".  29: each layer's weights have formats of their own.
inline constexpr int kProtocolVersion = 29;

}  // namespace switchyard::link
