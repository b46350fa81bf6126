// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 16: plans have a layer's costs, results its seconds; settings say whether outputs are added.
inline constexpr int kProtocolVersion = 16;

}  // namespace switchyard::link
