#include "workers/comm/gloo/gloo_sentinels.h"

#include <chrono>
#include <exception>
#include <utility>

namespace switchyard::comm {

GlooSentinels::GlooSentinels(gloo::Context* context, uint64_t unused_slot)
    : buffers_(context->size), byte_(context->size) {
  for (int peer = 0; peer < context->size; ++peer) {
    if (peer == context->rank) continue;
    auto buffer = context->createUnboundBuffer(&byte_[peer], 1);
    try {
      buffer->recv(peer, unused_slot);
      buffers_[peer] = std::move(buffer);
    } catch (const std::exception&) {
      closed_at_once_.push_back(peer);
    }
  }
}

std::vector<int> GlooSentinels::NewlyClosed() {
  std::vector<int> closed = std::exchange(closed_at_once_, {});
  for (size_t peer = 0; peer < buffers_.size(); ++peer) {
    if (buffers_[peer] == nullptr) continue;
    // An aborted wait returns at once, or throws what the connection ended with.  (One that runs out of time would
    // close every connection.)
    buffers_[peer]->abortWaitRecv();
    try {
      buffers_[peer]->waitRecv(nullptr, std::chrono::hours(1));
    } catch (const std::exception&) {
      buffers_[peer].reset();
      closed.push_back(static_cast<int>(peer));
    }
  }
  return closed;
}

}  // namespace switchyard::comm
