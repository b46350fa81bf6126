// A simulated client with one request: it calls, reads, perhaps cancels or is slow, calls again if its server was lost,
// and checks all that it gets.
//
// Checks: the indices of each choice's tokens are 0, 1, 2 … without gap or repeat; tokens are those of an undisturbed
// run; each choice and each call ends once, a call with an error only for a cause that was there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/engine/token_stream.h"
#include "tests/simulation/nodes/server_process.h"

namespace switchyard::simulation {

// What the client wants, and how it behaves.
struct Wish {
  int id = 0;
  std::vector<int32_t> prompt;
  int32_t num_choices = 1;
  int32_t max_tokens = 1;
  uint64_t seed = 0;
  bool logprobs = false;
  bool constrained = false;
  absl::Duration deadline = absl::InfiniteDuration();
  absl::Duration cancel_after = absl::InfiniteDuration();
  bool aborts = false;                               // by the Abort call, not by its own call's cancellation
  absl::Duration read_pause = absl::ZeroDuration();  // between two messages
  int32_t stall_at = -1;                             // message before which it pauses once, for `stall`; -1: none
  absl::Duration stall = absl::ZeroDuration();
  int calls = 1;  // at most, if servers or workers are lost
};

// How long a client may leave its stream unread: --slow_client_timeout of the simulated server.
inline constexpr absl::Duration kSlowReader = absl::Seconds(1);

class Client {
 public:
  // max_context: of the served model and its workers' caches.  Borrows world and server.
  Client(World* world, ServerProcess* server, Wish wish, int32_t max_context);

  void Begin();
  void OnServerDeath();
  // The request has ended, for good.
  bool over() const { return over_; }
  bool ok() const { return over_ && end_.ok(); }
  const Wish& wish() const { return wish_; }
  const absl::Status& end() const { return end_; }
  // Whether workers may have been lost as if by a request, whichever it was, that often in a row.
  void set_may_be_blamed(std::function<bool()> may) { may_be_blamed_ = std::move(may); }
  // From now on an end with this error is none that faults explain.
  void ExpectService() { expects_service_ = true; }
  std::string name() const;

 private:
  struct Choice {
    std::vector<int32_t> tokens;
    std::vector<int32_t> expected;
    bool finished = false;
  };
  void Call();
  void PopSoon();
  void Pop();
  void Read(server::OutputChunk chunk);
  void ReadChoice(const server::OutputChunk& chunk, Choice* choice);
  void CheckWhole(const Choice& choice, const server::OutputChunk& chunk);
  void EndCall(const absl::Status& status);
  std::string WhyWrong(const absl::Status& status) const;
  absl::Duration LongestUnread() const;
  void CallAgain();
  absl::Duration Latency();
  // Runs on this client's machine, if the call of now is still under way.
  void Later(absl::Duration delay, World::Action action);

  World& world_;
  ServerProcess& server_;
  const Wish wish_;
  const int32_t max_context_;
  std::vector<Choice> choices_;
  std::shared_ptr<server::TokenStream> stream_;
  uint64_t handle_ = 0;
  int calls_ = 0;
  bool open_ = false;  // a call is under way
  bool cancelled_ = false, aborted_ = false, over_ = false, expects_service_ = false;
  bool popping_ = false;
  bool window_ = true;  // the next message may be sent
  int32_t messages_ = 0;
  int64_t stops_before_ = 0;  // of the server, when this call began
  absl::Time called_, next_arrival_ = absl::InfinitePast();
  absl::Status end_;
  std::function<bool()> may_be_blamed_ = [] { return true; };
};

}  // namespace switchyard::simulation
