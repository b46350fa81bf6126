// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 10: a worker's progress names epoch and phase.
inline constexpr int kProtocolVersion = 11;

}  // namespace switchyard::link
