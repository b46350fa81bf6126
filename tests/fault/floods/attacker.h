// Attackers' connections, which are made again when the server ends them.  For the sources of floods.
//
// Each is used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/e2e/raw_connection.h"
#include "tests/fault/floods/attacks.h"

namespace switchyard {

// After which an attacker looks whether it is over.
inline constexpr absl::Duration kAttackTurn = absl::Milliseconds(50);

// The options of a connection from the address of that attacker.
inline RawConnection::Options AttackFrom(int client) { return {.from = absl::StrCat("127.0.0.", 2 + client)}; }

// One connection of a flood, made again when the server has ended it.
class Attacker {
 public:
  Attacker(AttackScope* scope, RawConnection::Options options, std::string greeting)
      : scope_(scope), options_(std::move(options)), greeting_(std::move(greeting)) {}
  ~Attacker() { Count(); }
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;

  // Null while there is no connection; then it is also a while until the next try.
  RawConnection* Get() {
    if (connection_ != nullptr && !connection_->is_ended()) return connection_.get();
    if (absl::Now() < next_try_) return nullptr;
    Count();
    if (connection_ != nullptr && connection_->is_connected()) ++scope_->ended;
    connection_ = std::make_unique<RawConnection>(scope_->address, options_);
    counted_ = 0;
    is_new_ = connection_->is_connected();
    if (is_new_) ++scope_->connections;
    next_try_ = absl::Now() + absl::Milliseconds(is_new_ ? 2 : 100);
    if (is_new_) connection_->Send(greeting_, kAttackTurn);
    return connection_->is_ended() ? nullptr : connection_.get();
  }
  // Closes the connection, as a client that has gone; Get makes the next at once.
  void Vanish() {
    Count();
    connection_ = nullptr;
    next_try_ = absl::InfinitePast();
  }
  // Whether the connection is another one since this was asked last.
  bool IsNew() { return std::exchange(is_new_, false); }
  // Adds the sent bytes to the flood's.
  void Count() {
    if (connection_ == nullptr) return;
    scope_->bytes += connection_->bytes_sent() - counted_;
    counted_ = connection_->bytes_sent();
  }

 private:
  AttackScope* const scope_;
  const RawConnection::Options options_;
  const std::string greeting_;
  std::unique_ptr<RawConnection> connection_;
  bool is_new_ = false;
  absl::Time next_try_ = absl::InfinitePast();
  int64_t counted_ = 0;
};

// Many connections of one thread.  `tend` is called for each again and again.
struct ManyConnections {
  int connections;
  int clients = 1;  // addresses from which they come
  std::string greeting = {};
  bool answers = true;     // to SETTINGS and PING
  int receive_buffer = 0;  // of the sockets, in bytes; 0: the system's choice
  std::function<void(RawConnection*, bool is_new)> tend = {};
  absl::Duration pause = {};  // between rounds
};
inline void KeepMany(AttackScope* scope, const ManyConnections& crowd) {
  std::vector<std::unique_ptr<Attacker>> all;
  for (int i = 0; i < crowd.connections; ++i) {
    RawConnection::Options options = AttackFrom(i % crowd.clients);
    options.answers = crowd.answers;
    options.receive_buffer = crowd.receive_buffer;
    all.push_back(std::make_unique<Attacker>(scope, options, crowd.greeting));
  }
  while (!scope->over) {
    for (const auto& attacker : all) {
      RawConnection* const connection = attacker->Get();
      if (connection == nullptr || scope->over) continue;
      const bool is_new = attacker->IsNew();
      if (crowd.tend) crowd.tend(connection, is_new);
      attacker->Count();
    }
    absl::SleepFor(crowd.pause);
  }
}

}  // namespace switchyard
