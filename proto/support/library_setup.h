// Settings of third-party libraries that all our programs share.  Call first in main, before other threads exist.
#pragma once

namespace switchyard::rpc {

// - Abseil does not search for deadlocks of mutexes, which a distribution's build may have on: it costs time at every
//   lock, and ends the process for an order of locks that might deadlock some day.
// - Protobuf's complaints about malformed bytes go into our log, at most one line in ten seconds.
void SetUpLibraries();

}  // namespace switchyard::rpc
