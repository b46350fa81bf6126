// The version of the link between server and workers (worker.proto): both sides must speak the same.
#pragma once

namespace switchyard {

// 7: serving workers that also train (role "both"), slices for it in step plans, AbortGroup says whose group it means.
inline constexpr int kProtocolVersion = 7;

}  // namespace switchyard
