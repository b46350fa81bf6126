// Which kind of traffic the connections of a group carry: a mark (IPv4's type of service) by which shaped links
// distinguish packets (emulated_cluster.py).  Linux; thread-compatible.
#pragma once

#include <set>

#include "absl/status/status.h"

namespace switchyard::bench {

class ConnectionMarks {
 public:
  // Takes the connections that this process has made since the last call of any object (those of a group just formed).
  static ConnectionMarks OfNewConnections();
  // Marks packets that leave from now on.  Errors: Internal.
  absl::Status Mark(int type_of_service) const;
  size_t size() const { return sockets_.size(); }

 private:
  std::set<int> sockets_;
};

}  // namespace switchyard::bench
