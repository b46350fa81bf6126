// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 8: timings of a step by name; fields that nobody reads are gone.
inline constexpr int kProtocolVersion = 8;

}  // namespace switchyard::link
