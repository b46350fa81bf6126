// A worker's assignment in a serving group that is about to form.  Plain data; proto/link/fleet_codec.h is
// its form on the wire.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::fleet {

struct RankAssignment {
  int64_t epoch = 0;
  int rank = 0;
  int world = 1;
  std::string store_token;       // the group's secret
  int64_t form_deadline_ms = 0;  // longest wait for other ranks that have loaded, while none makes progress
  std::string reach = {};        // a member's address that is not loopback; empty if there is none
  bool encrypt_links = false;    // TLS between the ranks

  bool operator==(const RankAssignment& other) const = default;
};

}  // namespace switchyard::fleet
