#include "workers/comm/gloo/gloo_mesh.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gloo/common/error.h"
#include "gloo/transport/context.h"
#include "gloo/transport/pair.h"

namespace switchyard::comm {

void GlooMesh::ThrowIfClosed() {
  absl::MutexLock lock(&mu_);
  if (closed_) throw gloo::Exception("the mesh was closed while it connected");
}

void GlooMesh::Connect(gloo::rendezvous::Store* store, const std::shared_ptr<gloo::transport::Device>& device) {
  std::shared_ptr<gloo::transport::Context> pairs = device->createContext(rank, size);
  pairs->setTimeout(getTimeout());
  // This rank's key holds the addresses at which it listens for the others, in their order, all of one size.
  std::vector<char> listens;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    auto& pair = pairs->createPair(peer);
    pair->setLocalRank(0);
    const std::vector<char> address = pair->address().bytes();
    listens.insert(listens.end(), address.begin(), address.end());
  }
  {
    absl::MutexLock lock(&mu_);
    device_ = device;
    transportContext_ = std::move(pairs);
    paired_ = true;
  }
  store->set(absl::StrCat(rank), listens);
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const std::vector<char> theirs = store->get(absl::StrCat(peer));
    if (theirs.size() != listens.size()) {
      throw gloo::Exception(
          absl::StrCat("rank ", peer, " gave ", theirs.size(), " bytes of addresses, not ", listens.size()));
    }
    const size_t bytes = theirs.size() / static_cast<size_t>(size - 1);
    const auto begin = theirs.begin() + static_cast<int64_t>(bytes) * (rank > peer ? rank - 1 : rank);
    ThrowIfClosed();
    // A pair that is closed meanwhile returns as if it was connected.
    getPair(peer)->connect({begin, begin + static_cast<int64_t>(bytes)});
    ThrowIfClosed();
  }
}

void GlooMesh::Close() noexcept {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    if (!paired_) return;
  }
  try {
    closeConnections();
  } catch (const std::exception&) {
    // Already closed: that is what was wanted.
  }
}

}  // namespace switchyard::comm
