// Groups of ranks for tests: threads over the local mailbox or over sockets on loopback, and a store for several
// processes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/base/io/unique_fd.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/group_forming.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::test {

// kSocket: as serving forms it.  kOvertaking: as training does.  kEncrypted: kSocket over TLS.
enum class Backend { kLocal, kSocket, kOvertaking, kEncrypted };
inline constexpr Backend kBackends[] = {Backend::kLocal, Backend::kSocket, Backend::kOvertaking, Backend::kEncrypted};
std::string BackendName(Backend backend);

// Far enough never to be met by a healthy test, near enough to end a broken one.
absl::Time Soon();

// Of a group in epoch 7 on loopback that forms within `limit`.
comm::GroupOptions FormingOptions(int rank, int world, absl::Duration limit = absl::Seconds(20));
// REQUIRES: not kLocal.
absl::StatusOr<std::unique_ptr<comm::Communicator>> FormGroup(Backend backend, const comm::GroupOptions& options,
                                                              comm::RendezvousStore* store);
// element r is rank r's communicator.  REQUIRES: forming works (checked).
std::vector<std::unique_ptr<comm::Communicator>> MakeGroup(Backend backend, int world, int64_t epoch = 1);

// Runs fn on a thread per rank; element r is what rank r's returned.
std::vector<absl::Status> RunRanks(std::vector<std::unique_ptr<comm::Communicator>>* ranks,
                                   const std::function<absl::Status(comm::Communicator*)>& fn);
// The same over a new group; expects every rank to be OK.
void ExpectRanksOk(Backend backend, int world, const std::function<absl::Status(comm::Communicator*)>& fn);

// A message with this text, and back.
comm::Message TextMessage(comm::Communicator* comm, const std::string& text);
std::string TextOf(const comm::Message& message);

// Keys are files of a directory: for ranks that are processes.
class DirectoryStore : public comm::RendezvousStore {
 public:
  explicit DirectoryStore(std::string directory) : directory_(std::move(directory)) {}
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> Get(absl::Span<const std::string> keys, absl::Time deadline) override;
  void CancelWaits(absl::string_view) override {}
  absl::Status Cancelled() override { return absl::OkStatus(); }

 private:
  std::string PathOf(absl::string_view key) const;
  const std::string directory_;
};

// The two ends of a stream; they do not block, and the kernel holds `send_bytes` or so of each direction.
std::pair<UniqueFd, UniqueFd> ConnectedPair(int send_bytes = 32 << 10);

// Connects to rank 0 of the group, by its address in the store, and proves to be options.rank.  The connection blocks.
UniqueFd JoinByHand(const comm::GroupOptions& options, comm::RendezvousStore* store);

// Connects to a port of loopback, says something, and stays.
class Stranger {
 public:
  Stranger(int port, absl::string_view words);
  // Whether it could connect and send.
  bool connected() const { return connected_; }
  // Whether it got any bytes before the connection's end.
  bool Answered() const;

 private:
  UniqueFd fd_;
  bool connected_ = false;
};

// Of this process.
int OpenFds();
int NumThreads();

}  // namespace switchyard::test
