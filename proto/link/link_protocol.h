// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 14: plans have costs of moves; there are no migrations.
inline constexpr int kProtocolVersion = 15;

}  // namespace switchyard::link
