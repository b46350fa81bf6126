// A Gloo context that connects every pair of ranks, and can be told meanwhile that it is not wanted any more.
//
// Gloo's own connectFullMesh cannot: it shows its pairs to nobody before all are connected, and waits for a peer that
// is gone or stopped until its time is over.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/device.h"

namespace switchyard::comm {

class GlooMesh : public gloo::rendezvous::Context {
 public:
  GlooMesh(int rank, int world) : gloo::rendezvous::Context(rank, world) {}

  // Blocks until every pair is connected.  Throws what Gloo and the store throw, and gloo::Exception after Close.
  void Connect(gloo::rendezvous::Store* store, const std::shared_ptr<gloo::transport::Device>& device);
  // Closes what is connected or connects, which frees Connect.  Any thread; again: closes what has come since.
  void Close() noexcept;

 private:
  void ThrowIfClosed();

  absl::Mutex mu_;
  bool paired_ ABSL_GUARDED_BY(mu_) = false;  // transportContext_ and its pairs are there, and stay as they are
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace switchyard::comm
