// The floods: what each sends, over how many connections.  Attackers come from addresses of their own (127.0.0.2 and
// on), keep to the protocol's rules no further than their attack needs, and connect again when they are cut off.
#pragma once

#include <atomic>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace switchyard {

// Shared by the threads of one flood; thread-safe.
struct AttackScope {
  std::string address;  // of the server
  std::atomic<bool> over{false};
  std::atomic<int64_t> bytes{0};        // sent
  std::atomic<int64_t> connections{0};  // made
  std::atomic<int64_t> ended{0};        // of those, by the server
  std::atomic<int64_t> calls{0};        // or frames, whatever the flood counts
};

struct FloodKind {
  const char* name;
  int threads;
  void (*attack)(AttackScope* scope, int thread);  // returns soon after scope->over
  bool at_workers = false;                         // at the workers' port, instead of that of users
  bool is_load = false;                            // also asks for answers, so that streams beside it have fewer turns
  bool at_http = false;                            // at the port of HTTP; half of the streams beside it are HTTP's, too
};
inline void PrintTo(const FloodKind& flood, std::ostream* out) { *out << flood.name; }

const std::vector<FloodKind>& Floods();
const std::vector<FloodKind>& HttpFloods();

}  // namespace switchyard
