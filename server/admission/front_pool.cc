#include "server/admission/front_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/support/errors.h"
#include "proto/support/host_port.h"
#include "server/admission/peer_name.h"

namespace switchyard::server {
namespace {

// Bytes of a waiting call besides its message.
constexpr int64_t kCallBytes = 4096;
// Most memory per byte of text while it is parsed, tokenized and answered.
constexpr int64_t kBytesPerByte = 48;
// Smaller calls begin without asking for room, since they need little.
constexpr int64_t kSmallBytes = 64 << 10;

absl::Status Full(const std::string& what, int64_t limit, int64_t actual) {
  return rpc::WithRetry(
      rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL,
                     absl::StrCat(what, ": ", actual, ", limit ", limit, "; try again later"),
                     {{"field", "request"}, {"limit", absl::StrCat(limit)}, {"actual", absl::StrCat(actual)}}),
      absl::Milliseconds(500));
}

}  // namespace

FrontPool::FrontPool(int num_threads, Limits limits, RoomFn room)
    : limits_(limits), room_(std::move(room)), most_long_(std::max(1, num_threads - 1)) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

FrontPool::~FrontPool() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void FrontPool::Post(Work work) {
  std::vector<std::pair<Work, absl::Status>> refused;
  {
    absl::MutexLock lock(&mu_);
    const std::string name = work.client;
    Client& client = clients_[name];
    if (client.waiting.empty()) turns_.push_back(name);
    Count(work, 1, &client);
    client.waiting.push_back(std::move(work));
    for (absl::Status full = CheckLimits(name); !full.ok(); full = CheckLimits(name)) {
      // If the client's share is full, its own call is refused; if the pool is full, one of the largest client's.
      const bool own = stopping_ || client.bytes > limits_.bytes_per_client;
      const std::string whose = own ? name : Largest();
      refused.emplace_back(Take(whose, /*newest=*/true), std::move(full));
      if (!clients_.contains(whose)) turns_.erase(std::find(turns_.begin(), turns_.end(), whose));
      if (whose == name) break;  // the new one
    }
  }
  for (auto& [gone, why] : refused) Refuse(&gone, why);
}

absl::Status FrontPool::CheckLimits(const std::string& client) const {
  if (stopping_) return Full("calls that wait while the server stops", 0, static_cast<int64_t>(calls_));
  const int64_t own = clients_.at(client).bytes;
  if (own > limits_.bytes_per_client) {
    return Full("bytes of one client's calls that wait for their text to be read", limits_.bytes_per_client, own);
  }
  if (bytes_ > limits_.bytes) {
    return Full("bytes of calls that wait for their text to be read (--max_waiting_text_bytes)", limits_.bytes, bytes_);
  }
  if (calls_ > limits_.calls) {
    return Full("calls that wait for their text to be read", static_cast<int64_t>(limits_.calls),
                static_cast<int64_t>(calls_));
  }
  return absl::OkStatus();
}

const std::string& FrontPool::Largest() const {
  const auto less = [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; };
  return std::max_element(clients_.begin(), clients_.end(), less)->first;
}

void FrontPool::Count(const Work& work, int calls, Client* client) {
  const int64_t bytes = calls * (work.bytes + kCallBytes);
  client->bytes += bytes;
  bytes_ += bytes;
  calls_ += static_cast<size_t>(calls);
}

FrontPool::Work FrontPool::Take(const std::string& name, bool newest) {
  const auto it = clients_.find(name);
  std::deque<Work>& waiting = it->second.waiting;
  Work work = std::move(newest ? waiting.back() : waiting.front());
  newest ? waiting.pop_back() : waiting.pop_front();
  Count(work, -1, &it->second);
  if (waiting.empty()) clients_.erase(it);
  return work;
}

size_t FrontPool::NextTurn() const {
  size_t i = 0;
  while (i < turns_.size() && running_long_ >= most_long_ &&
         clients_.at(turns_[i]).waiting.front().bytes >= kSmallBytes)
    ++i;
  return i;
}

void FrontPool::Run() {
  for (;;) {
    Work work;
    int64_t under_way = 0;
    {
      absl::MutexLock lock(&mu_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return (stopping_ && calls_ == 0) || NextTurn() < turns_.size();
      };
      mu_.Await(absl::Condition(&wanted));
      if (calls_ == 0) return;
      const auto turn = turns_.begin() + static_cast<std::ptrdiff_t>(NextTurn());
      const std::string name = std::move(*turn);
      turns_.erase(turn);
      work = Take(name, /*newest=*/false);
      if (clients_.contains(name)) turns_.push_back(name);
      under_way = running_bytes_ += work.bytes;
      running_long_ += work.bytes >= kSmallBytes ? 1 : 0;
    }
    const int64_t bytes = work.bytes;
    RunOne(std::move(work), under_way);
    absl::MutexLock lock(&mu_);
    running_bytes_ -= bytes;
    running_long_ -= bytes >= kSmallBytes ? 1 : 0;
  }
}

void FrontPool::RunOne(Work work, int64_t under_way) {
  if (work.bytes >= kSmallBytes) {
    const int64_t room = room_(), wanted = kBytesPerByte * under_way;
    if (wanted > room) return Refuse(&work, Full("bytes of memory that reading this text may take", room, wanted));
  }
  try {
    work.run();
  } catch (const std::bad_alloc&) {
    Refuse(&work, Full("bytes of text for which there was no memory", 0, work.bytes));
  }
}

void FrontPool::Refuse(Work* work, const absl::Status& why) {
  refused_.fetch_add(1);
  work->refuse(why);
}

int64_t FrontPool::MemoryRoom() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::numeric_limits<int64_t>::max();
  int64_t pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
  std::fclose(file);
  return static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE);
}

std::string FrontClientOfPeer(absl::string_view peer) {
  return rpc::IsLoopback(AddressOfPeer(peer)) ? DirectPeer(peer) : ClientOfPeer(peer);
}

}  // namespace switchyard::server
