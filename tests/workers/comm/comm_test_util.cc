#include "tests/workers/comm/comm_test_util.h"

#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/comm/tcp/socket_address.h"
#include "workers/comm/tcp/socket_communicator.h"
#include "workers/comm/tcp/socket_handshake.h"

namespace switchyard::test {
namespace {

int CountEntries(const char* directory) {
  DIR* dir = opendir(directory);
  SY_CHECK(dir != nullptr);
  int entries = 0;
  while (readdir(dir) != nullptr) ++entries;
  closedir(dir);
  return entries - 2;
}

}  // namespace

std::string BackendName(Backend backend) {
  static constexpr const char* kNames[] = {"Local", "Socket", "Overtaking", "Encrypted"};
  return kNames[static_cast<size_t>(backend)];
}

comm::GroupOptions FormingOptions(int rank, int world, absl::Duration limit) {
  return {.rank = rank,
          .world = world,
          .epoch = 7,
          .token = "secret",
          .address = "127.0.0.1",
          .deadline = absl::Now() + limit};
}

absl::StatusOr<std::unique_ptr<comm::Communicator>> FormGroup(Backend backend, const comm::GroupOptions& options,
                                                              comm::RendezvousStore* store) {
  SY_CHECK(backend != Backend::kLocal);
  if (backend == Backend::kSocket) return comm::FormSocketGroup({.group = options}, store);
  if (backend == Backend::kEncrypted) {
    comm::GroupOptions encrypted = options;
    encrypted.encrypt_links = true;
    return comm::FormSocketGroup({.group = encrypted}, store);
  }
  return comm::FormSocketGroup({.group = options, .framing = comm::kOvertakingFrames, .socket = {}}, store);
}

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

std::vector<std::unique_ptr<comm::Communicator>> MakeGroup(Backend backend, int world, int64_t epoch) {
  if (backend == Backend::kLocal) return comm::MakeLocalGroup(world, epoch);
  comm::InMemoryStore store;
  std::vector<std::unique_ptr<comm::Communicator>> ranks(world);
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      auto comm = FormGroup(
          backend,
          {.rank = r, .world = world, .epoch = epoch, .token = "secret", .address = "127.0.0.1", .deadline = Soon()},
          &store);
      SY_CHECK_OK(comm.status());
      ranks[r] = *std::move(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

std::vector<absl::Status> RunRanks(std::vector<std::unique_ptr<comm::Communicator>>* ranks,
                                   const std::function<absl::Status(comm::Communicator*)>& fn) {
  std::vector<absl::Status> statuses(ranks->size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks->size(); ++r) {
    threads.emplace_back([&, r] { statuses[r] = fn((*ranks)[r].get()); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void ExpectRanksOk(Backend backend, int world, const std::function<absl::Status(comm::Communicator*)>& fn) {
  auto ranks = MakeGroup(backend, world);
  const std::vector<absl::Status> statuses = RunRanks(&ranks, fn);
  for (int r = 0; r < world; ++r) EXPECT_TRUE(statuses[r].ok()) << "rank " << r << ": " << statuses[r];
}

comm::Message TextMessage(comm::Communicator* comm, const std::string& text) {
  comm::Message message = comm->NewMessage(static_cast<int64_t>(text.size()));
  if (!text.empty()) std::memcpy(message.payload(), text.data(), text.size());
  return message;
}

std::string TextOf(const comm::Message& message) { return std::string(message.span().data(), message.span().size()); }

std::string DirectoryStore::PathOf(absl::string_view key) const {
  return absl::StrCat(directory_, "/", absl::StrReplaceAll(key, {{"/", "_"}}));
}

absl::Status DirectoryStore::Set(absl::string_view key, absl::string_view value) {
  // A link appears whole or not at all, and only once.
  const std::string draft = absl::StrCat(PathOf(key), ".draft.", getpid());
  std::ofstream(draft, std::ios::binary).write(value.data(), static_cast<std::streamsize>(value.size()));
  const int rc = link(draft.c_str(), PathOf(key).c_str());
  unlink(draft.c_str());
  return rc == 0 ? absl::OkStatus() : absl::AlreadyExistsError(absl::StrCat(key, " is set"));
}

absl::StatusOr<std::vector<std::string>> DirectoryStore::Get(absl::Span<const std::string> keys, absl::Time deadline) {
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    for (;;) {
      std::ifstream file(PathOf(key), std::ios::binary);
      if (file) {
        std::ostringstream text;
        text << file.rdbuf();
        values.push_back(text.str());
        break;
      }
      if (absl::Now() > deadline) return absl::DeadlineExceededError(absl::StrCat("nobody set ", key));
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  return values;
}

std::pair<UniqueFd, UniqueFd> ConnectedPair(int send_bytes) {
  int fds[2];
  SY_CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  for (const int fd : fds) SY_CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof(send_bytes)), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

UniqueFd JoinByHand(const comm::GroupOptions& options, comm::RendezvousStore* store) {
  const auto text = store->Get({absl::StrCat(comm::GroupPrefix(options), "socket/0")}, Soon());
  SY_CHECK_OK(text.status());
  const auto to = comm::SocketAddress::Parse(text->front());
  SY_CHECK_OK(to.status());
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SY_CHECK_EQ(connect(fd.get(), to->get(), to->size()), 0);
  const comm::SocketHandshake::Self self = {.id = comm::IdOfGroup(options), .secret = options.token};
  comm::SocketHandshake handshake(&self, UniqueFd(dup(fd.get())), 0);
  for (;;) {
    pollfd event = {handshake.fd(), handshake.events(), 0};
    SY_CHECK_EQ(poll(&event, 1, 20'000), 1);
    const absl::StatusOr<bool> proven = handshake.Advance();
    SY_CHECK_OK(proven.status());
    if (*proven) return fd;
  }
}

Stranger::Stranger(int port, absl::string_view words) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  const absl::StatusOr<comm::SocketAddress> to = comm::SocketAddress::Of("127.0.0.1", port);
  SY_CHECK_OK(to.status());
  connected_ = connect(fd_.get(), to->get(), to->size()) == 0 &&
               send(fd_.get(), words.data(), words.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(words.size());
}

bool Stranger::Answered() const {
  char answer[64];
  return recv(fd_.get(), answer, sizeof(answer), MSG_DONTWAIT) > 0;
}

int OpenFds() { return CountEntries("/proc/self/fd"); }
int NumThreads() { return CountEntries("/proc/self/task"); }

}  // namespace switchyard::test
