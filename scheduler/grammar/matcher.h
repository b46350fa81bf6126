// One text under a grammar: takes its tokens one by one and says which may come next.
//
// Thread-compatible, and all matchers of one automaton have one owner.  A matcher has a budget of work that grows with
// its tokens, so that no request can hold the owner's thread for long.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/grammar/automaton.h"

namespace switchyard::grammar {

class Matcher {
 public:
  // A walk through all of a vocabulary of 128000 tokens takes some 350000 units, and about 2 ms.
  static constexpr int64_t kFirstWork = 16'000'000;
  static constexpr int64_t kWorkPerToken = 500'000;

  explicit Matcher(std::shared_ptr<Automaton> automaton)
      : automaton_(std::move(automaton)) {}  // shared: by all its texts

  // ResourceExhausted: the budget is used up.
  absl::StatusOr<TokenMask> NextMask();
  // InvalidArgument: the token does not fit; ResourceExhausted as above.
  absl::Status Accept(int32_t token);
  // Whether the text so far is a whole one, and whether any byte may follow it.  REQUIRES: the last call was OK.
  bool accepts() const { return automaton_->Accepts(set_); }
  bool may_go_on() const { return automaton_->MayGoOn(set_); }

 private:
  absl::Status FindPlace();
  absl::Status Advance(int32_t token);

  std::shared_ptr<Automaton> automaton_;
  std::optional<Automaton::Place> saved_;  // where it was some tokens ago; none: the beginning
  std::vector<int32_t> tokens_;            // since then
  int64_t work_ = kFirstWork;
  uint64_t generation_ = 0;  // of the automaton, when set_ was found
  int32_t set_ = Automaton::kDead;
};

}  // namespace switchyard::grammar
