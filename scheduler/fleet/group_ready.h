// What a worker says when its group has formed.  Plain data; proto/link/fleet_codec.h is its form on the wire.
#pragma once

#include <cstdint>

namespace switchyard::fleet {

// How long an all-to-all of the group takes alone, by the bytes that a rank sends to the others: a line, fitted to what
// was measured (workers/comm/group/link_fit.h); the same on all ranks.  0 bytes a second: not measured.
struct LinkFit {
  double start_seconds = 0;
  double bytes_per_second = 0;
  double r_squared = 0;  // how well the line fits: 1 = exactly

  bool measured() const { return bytes_per_second > 0; }
  double Seconds(double bytes) const { return start_seconds + bytes / bytes_per_second; }
  bool operator==(const LinkFit& other) const = default;
};

struct GroupReady {
  int64_t epoch = 0;
  int32_t num_kv_blocks = 0;
  bool experts_in_place = false;  // any worker of the group computes any expert, all of which are on one machine
  LinkFit links;

  bool operator==(const GroupReady& other) const = default;
};

}  // namespace switchyard::fleet
