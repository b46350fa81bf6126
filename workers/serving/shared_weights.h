// Weights that every worker holds, once a machine: workers of a group on the same machine, which have agreed that they
// loaded the same, keep them in one memory.
//
// One of them, the owner, puts its own into a memory file (memfd) and maps that, read only, where they were; the others
// open it through the owner's process, compare every byte, and map it over theirs.  Addresses stay.  The memory lives
// as long as any of them maps it, and nobody can change it (it is sealed); one that cannot open it, or finds other
// bytes, keeps its own.  Each worker loads its own first, and checks of memory count that.  A process whose memory
// could not be mapped ends.
//
// Where the kernel has no huge pages for the file (memory_file.h) nothing is shared.  Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/base/io/unique_fd.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/tensor/tensor.h"

namespace switchyard::worker {

class SharedWeights {
 public:
  // Less is not worth a file.
  static constexpr int64_t kLeastBytes = 4 << 20;

  // Borrows memory of a host, which nobody writes once Share was called.  REQUIRES: from kLeastBytes on
  // what is allocated begins and ends where huge pages do (tensor.cc).
  explicit SharedWeights(const Buffer& memory);
  SharedWeights(const SharedWeights&) = delete;
  SharedWeights& operator=(const SharedWeights&) = delete;

  // Every rank of a group calls it, with the same world, once all hold the same; again for each group.  Nothing may run
  // that reads the memory.  Errors: the store's.
  absl::Status Share(int rank, int world, comm::RendezvousStore* store, absl::Time deadline);

  // Of the memory, that other workers of the machine map, too, or, at its owner, may; 0: it is this worker's own.
  int64_t bytes() const { return shared_ ? bytes_ : 0; }

 private:
  // Both set file_ and return true, or log why not.
  bool Publish();
  bool MapOf(int owner, const std::string& path);
  absl::Status TryPublish();
  absl::Status TryMapOf(const std::string& path);
  // Puts the file's bytes where the memory is.
  void Map(int file, int64_t offset, int64_t bytes) const;

  char* const data_;
  const int64_t bytes_;
  UniqueFd file_;  // of the memory, read only
  bool shared_ = false;
};

}  // namespace switchyard::worker
