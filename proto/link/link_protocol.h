// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 18: workers say how fast their links are; jobs have a granularity.
inline constexpr int kProtocolVersion = 18;

}  // namespace switchyard::link
