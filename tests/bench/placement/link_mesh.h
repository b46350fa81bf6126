// Messages between a benchmark's workers: plain TCP, one connection a pair, sizes known on both sides.
//
// Sixteen workers on a few cores lack CPU time most, and the workers' own communicator takes more of it a
// message (headers, announcements, an I/O thread), so that a benchmark of placement would measure that.  What goes
// where is as there: all-to-alls direct, gathers in the rounds of workers/comm/local/gather_work.h.  Thread-compatible.
//
// Messages of an all-to-all leave in turns of kPieces, as real ones do, which are many packets long and share a link by
// packets.  One packet each, in the same order on all ranks, would make equal messages pass each other without ever
// meeting, and unequal ones wait behind each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace switchyard::bench {

class LinkMesh {
 public:
  // Connects all ranks; addresses[rank] is this one's.  Blocks until all are there, at most a minute.
  static absl::StatusOr<std::unique_ptr<LinkMesh>> Connect(int rank, const std::vector<std::string>& addresses);
  ~LinkMesh();
  LinkMesh(const LinkMesh&) = delete;
  LinkMesh& operator=(const LinkMesh&) = delete;

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(sockets_.size()); }

  // out[r] bytes to rank r, in[r] from it; blocks until all are sent and here.  What this rank sends itself is ignored.
  // REQUIRES: one message fits a socket's buffers (kMaxMessage).
  absl::Status Exchange(absl::Span<const int64_t> out, absl::Span<const int64_t> in);
  // Every rank sends `bytes` to all of them, in ceil(log2 R) rounds.
  absl::Status Gather(int64_t bytes);

  static constexpr int64_t kMaxMessage = 192 << 10;
  static constexpr int kPieces = 2;
  static constexpr int64_t kLeastCut = 2 << 10;  // shorter messages leave whole

 private:
  explicit LinkMesh(int rank, size_t world) : rank_(rank), sockets_(world, -1), nothing_(kMaxMessage) {}
  absl::Status Send(int peer, int64_t bytes);
  absl::Status Receive(int peer, int64_t bytes);

  const int rank_;
  std::vector<int> sockets_;   // [R] -1 for this rank
  std::vector<char> nothing_;  // what is sent
};

}  // namespace switchyard::bench
