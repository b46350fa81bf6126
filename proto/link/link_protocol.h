// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 9: groups of processes form over sockets of our own; a plan copies no blocks.
inline constexpr int kProtocolVersion = 9;

}  // namespace switchyard::link
