// The simulated network: hosts that may be cut off, and connections between a host's worker and the server.
//
// A connection keeps the order of each direction and nothing else: latencies are drawn anew for each message, and
// connections overtake each other.  While a host is cut off its messages wait.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tests/simulation/core/world.h"

namespace switchyard::simulation {

inline constexpr absl::Duration kKeepalive = absl::Seconds(2);

// Where a process runs, as the network sees it.
struct Host {
  absl::Duration least_latency = absl::Microseconds(20), most_latency = absl::Milliseconds(2);
  absl::Time cut_since = absl::InfinitePast(), cut_until = absl::InfinitePast();

  bool is_cut(absl::Time now) const { return now < cut_until; }
  // Cuts it off, or longer than it is already.
  void Cut(absl::Time now, absl::Duration time) {
    if (!is_cut(now)) cut_since = now;
    cut_until = std::max(cut_until, now + time);
  }
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  enum Side { kWorker, kServer };
  // One end: what comes to its socket, whether or not its process runs.
  class End {
   public:
    virtual ~End() = default;
    virtual void OnBytes(std::string bytes) = 0;
    // The last call: the other end has closed it, or it broke.
    virtual void OnEnd(const absl::Status& status) = 0;
  };

  // host, pid: the worker's; the host is borrowed.
  Connection(World* world, const Host* host, int64_t pid) : world_(*world), host_(*host), pid_(pid) {}

  // What came before waits for it.
  void Attach(Side side, End* end);
  void Send(Side from, std::string bytes);
  // Ends it in order: after what was sent.  That side gets no more calls.
  void Close(Side from, const absl::Status& status);
  // Breaks it: what is under way is lost, and both ends hear of it.
  void Break(const std::string& why);
  // The side's process is gone: its kernel closes the socket, in order or with a reset.
  void Abandon(Side side);
  // The side's keepalive was not answered: it gives the connection up.
  void Lapse(Side side);
  // Nothing will come any more.
  int64_t pid() const { return pid_; }
  bool over() const { return gone_[kWorker] && gone_[kServer]; }

 private:
  struct Item {
    absl::Time ready;
    std::string bytes;
    std::optional<absl::Status> end = std::nullopt;
  };
  void Push(Side to, Item item);
  void Schedule(Side to);
  void Deliver(Side to);

  World& world_;
  const Host& host_;
  const int64_t pid_;
  End* ends_[2] = {nullptr, nullptr};
  bool gone_[2] = {false, false};  // the side gets no more calls
  std::deque<Item> toward_[2];
  bool scheduled_[2] = {false, false};
};

}  // namespace switchyard::simulation
