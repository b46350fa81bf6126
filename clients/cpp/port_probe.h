// Finds out what listens at an address that does not answer as gRPC, for an error that says it.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace switchyard::client {

// What a port answers to the first bytes of gRPC in plaintext.
struct PortProbe {
  enum class Speaks { kNothing, kHttp1, kTls, kHttp2 };
  Speaks speaks = Speaks::kNothing;  // kNothing: it closes the connection, or is silent
  std::string text = {};  // a Switchyard server's own words, if the port is of one: "this is the HTTP port; …"
};

// Connects to `address` (HOST:PORT) up to three times.  Blocks for at most about three times `timeout`.
PortProbe ProbePort(absl::string_view address, absl::Duration timeout);

}  // namespace switchyard::client
