// What each of our programs sets in the libraries that it runs on.  Call first in main, before other threads exist.
#pragma once

namespace switchyard::rpc {

// - Abseil looks for no deadlocks of mutexes: a distribution's build may have that search compiled in and on.  It costs
//   time at every lock, the more the more mutexes there are, and it ends the process for an order of locks that might
//   deadlock some day.
// - Protobuf's complaints about bytes of strangers go into our log, at most one line in ten seconds.
void SetUpLibraries();

}  // namespace switchyard::rpc
