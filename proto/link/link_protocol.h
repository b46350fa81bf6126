// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 19: ranks prove to each other that they know the group's secret, and their links may be encrypted.
inline constexpr int kProtocolVersion = 19;

}  // namespace switchyard::link
