// GlooSentinels: tells which connections of a Gloo context have closed.
//
// Gloo 2022-05 hands the end of a connection to operations that wait for the peer's readiness, but neither to a send
// whose bytes it has begun to write nor to a receive whose bytes have begun to come (tcp::Pair::signalException): these
// would wait for their deadline.  A sentinel is a receive under a slot that nobody ever sends to; it waits for the
// peer's readiness for ever, so it does learn of the end, and asking it costs two locks.
//
// Thread-compatible.  Must die before the context.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gloo/context.h"
#include "gloo/transport/unbound_buffer.h"

namespace switchyard::comm {

class GlooSentinels {
 public:
  // REQUIRES: the context is connected.  A connection that has closed already counts as newly closed.
  GlooSentinels(gloo::Context* context, uint64_t unused_slot);

  // The peers whose connections closed since the last call.  Never blocks.
  std::vector<int> NewlyClosed();

 private:
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers_;  // [R]; null = this rank, or known as closed
  std::vector<char> byte_;                                                // [R] never written
  std::vector<int> closed_at_once_;
};

}  // namespace switchyard::comm
