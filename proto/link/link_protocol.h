// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 17: workers say whether they have experts in place.
inline constexpr int kProtocolVersion = 18;

}  // namespace switchyard::link
