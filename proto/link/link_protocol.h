// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 16: a layer's costs have no layer_ps.
inline constexpr int kProtocolVersion = 17;

}  // namespace switchyard::link
