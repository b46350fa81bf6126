// One text under a grammar: takes its tokens one by one and says which may come next.
//
// Thread-compatible, and all matchers of one automaton have one owner.  A matcher has a budget of work that grows with
// its tokens, so that no request can hold a thread for long.  Masks that take long may be made elsewhere: MaskTask.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/grammar/automaton.h"

namespace switchyard::grammar {

// What it takes to make a mask elsewhere.
struct MaskTask {
  std::shared_ptr<Automaton> automaton;  // shared: with the matcher, whose thread owns it; keeps the twin
  Automaton* twin = nullptr;             // one owner at a time
  Automaton::Place place;
  int64_t work = 0;  // 0: there is no mask

  // Makes the mask; `work` becomes what is left.  On the thread that owns the twin.  ResourceExhausted: used up.
  absl::StatusOr<MaskPtr> Run();
};

class Matcher {
 public:
  // A walk through all of a vocabulary of 128000 tokens takes some 350000 units, and about 2 ms.
  static constexpr int64_t kFirstWork = 16'000'000;
  static constexpr int64_t kWorkPerToken = 500'000;

  explicit Matcher(std::shared_ptr<Automaton> automaton)
      : automaton_(std::move(automaton)) {}  // shared: by all its texts

  // ResourceExhausted: the budget is used up, or the grammar is too ambiguous; at the beginning the automaton then
  // forgets what it made.
  absl::StatusOr<MaskPtr> NextMask();
  // The same, but null where it is not known and *allowance, which is reduced by what is used, does not suffice: then
  // it is made by TaskOfMask's, and KeepMask follows.
  absl::StatusOr<MaskPtr> NextMaskWithin(int64_t* allowance);
  MaskTask TaskOfMask();
  void KeepMask(MaskPtr mask, int64_t work_left);
  // Whether any token may come next: quickly.
  absl::StatusOr<bool> AnyFits();
  // InvalidArgument: the token does not fit; ResourceExhausted as above.
  absl::Status Accept(int32_t token);
  // Whether the text so far is a whole one, and whether any byte may follow it.  REQUIRES: the last call was OK.
  bool accepts() const { return automaton_->Accepts(set_); }
  bool may_go_on() const { return automaton_->MayGoOn(set_); }

 private:
  absl::Status FindPlace();
  absl::Status Advance(int32_t token);
  template <class T>
  absl::StatusOr<T> OrForget(absl::StatusOr<T> result);

  std::shared_ptr<Automaton> automaton_;
  std::optional<Automaton::Place> saved_;  // where it was some tokens ago; none: the beginning
  std::vector<int32_t> tokens_;            // since then
  int64_t work_ = kFirstWork;
  uint64_t generation_ = 0;  // of the automaton, when set_ was found
  int32_t set_ = Automaton::kDead;
};

}  // namespace switchyard::grammar
