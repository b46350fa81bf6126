// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard {

inline constexpr int kProtocolVersion = 6;

}  // namespace switchyard
