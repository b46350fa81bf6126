// Our rendezvous store as Gloo wants one.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gloo/rendezvous/store.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::comm {

// Puts `prefix` before every key and ends every wait at `deadline`, whatever Gloo asks for.  Failures leave as
// exceptions, for that is Gloo's way; status() keeps the first as it was.  Lives for one GlooMesh::Connect; one thread.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(RendezvousStore* store, std::string prefix, absl::Time deadline);

  void set(const std::string& key, const std::vector<char>& value) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

  const absl::Status& status() const { return status_; }

 private:
  void ThrowUnlessOk(const absl::Status& status);
  std::vector<std::string> Prefixed(const std::vector<std::string>& keys) const;

  RendezvousStore* const store_;
  const std::string prefix_;
  const absl::Time deadline_;
  absl::Status status_;
};

}  // namespace switchyard::comm
