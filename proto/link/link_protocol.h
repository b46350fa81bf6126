// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard::link {

// 13: moves have no kind, and estimators are five.
inline constexpr int kProtocolVersion = 13;

}  // namespace switchyard::link
