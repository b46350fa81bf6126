// Reports to systemd how the server is, as sd_notify(3) would: a datagram to the socket that the variable NOTIFY_SOCKET
// names. Without the variable nothing happens.  Thread-safe; does not block.
#pragma once

#include "absl/strings/string_view.h"

namespace switchyard::server {

// Whether a service manager started this process and listens.
bool HasServiceManager();

// `state`: lines such as "READY=1", "STATUS=loading weights", "STOPPING=1".  Best effort: a manager that does not
// listen is its own business.
void TellServiceManager(absl::string_view state);

}  // namespace switchyard::server
