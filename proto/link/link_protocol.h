// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 12: a plan says whether its layers decide where rows go.
inline constexpr int kProtocolVersion = 13;

}  // namespace switchyard::link
