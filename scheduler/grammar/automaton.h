// Runs a grammar over bytes, and says which tokens may come next.
//
// A grammar's place in a text is a set of configurations, each a state and the states that wait behind the calls it is
// in.  This makes a deterministic automaton of them, a set at a time as they are met, and keeps each set's mask: a
// step inside of known sets is one look-up, and a mask is made once, by a walk through the vocabulary's trie that
// leaves out all behind a prefix that does not fit.  Within a text, as a string of JSON is one, most characters lead
// on alike, or to the next count of a bounded repeat: what is behind a prefix is then taken as a whole.
//
// Every call has a bound on its work, and memory has one: past it all sets are forgotten (`generation` rises), and
// matchers find their place again.  The outcome depends on grammar and text alone, never on what was kept.
// Thread-compatible: the thread that runs matchers is the one owner; it may be destroyed on any.  For masks that take
// long there is a twin, for another owner.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "scheduler/grammar/byte_classes.h"
#include "scheduler/grammar/grammar.h"
#include "scheduler/grammar/token_mask.h"
#include "scheduler/grammar/token_trie.h"

namespace switchyard::grammar {

// What all automata of a process hold; each adds and takes away its own.  Thread-safe.
struct AutomatonTotals {
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> masks_made{0};
};

class Automaton {
 public:
  // Of an automaton, and of all together: past it those that hold more than a 64th of it forget.
  static constexpr int64_t kMaxBytes = 48 << 20;
  static constexpr int64_t kMaxTotalBytes = 256 << 20;
  // Calls inside one another; where more would be needed, nothing fits.
  static constexpr int32_t kMaxDepth = 512;
  // Configurations of one set, and steps to find them: edges that are followed or wait for it.
  static constexpr size_t kMaxConfigs = 4096;
  static constexpr size_t kMaxSteps = 1 << 17;
  static constexpr int32_t kDead = 0;  // the empty set

  // REQUIRES: grammar->Finish() was OK.  `grammar` is shared with the twin; `totals` is borrowed and outlives this.
  Automaton(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie, AutomatonTotals* totals);
  ~Automaton();
  Automaton(const Automaton&) = delete;
  Automaton& operator=(const Automaton&) = delete;

  // `work`: units that the call may use, reduced by what it used.  ResourceExhausted: it is used up, or a set is too
  // large; the automaton is as before but for what it keeps.
  absl::StatusOr<int32_t> Start(int64_t* work);
  absl::StatusOr<int32_t> Next(int32_t set, uint8_t byte, int64_t* work);
  // Of ends only Accepts knows.
  absl::StatusOr<MaskPtr> MaskOf(int32_t set, int64_t* work);
  // Null: not made yet.
  const MaskPtr& KnownMask(int32_t set) const { return sets_[set].mask; }
  // The twin has made it.
  void KeepMask(int32_t set, MaskPtr mask);
  // Whether MaskOf would find a token.
  absl::StatusOr<bool> AnyFits(int32_t set, int64_t* work);
  bool Accepts(int32_t set) const { return sets_[set].accepts; }
  // Whether a byte may follow.
  bool MayGoOn(int32_t set) const { return !sets_[set].configs.empty(); }

  // A set in a form that outlives forgetting.
  struct Place {
    struct Way {
      StateId state = 0;
      std::vector<StateId> waiting;  // states behind the calls it is in, the outermost first
    };
    std::vector<Way> ways;
    bool accepts = false;
  };
  Place Save(int32_t set) const;
  int32_t Restore(const Place& place);
  size_t NumWays(int32_t set) const { return sets_[set].configs.size(); }

  // Forgets all sets if there are too many.  Called between steps.
  void Trim();
  // Forgets all sets and gives their memory back.
  void Forget();
  uint64_t generation() const { return generation_; }
  // Another automaton of the same grammar, with sets of its own: masks of saved places are made there.  It lives as
  // long as this one, and has one owner, too.
  Automaton* twin();
  const TokenTrie& trie() const { return *trie_; }

 private:
  using StackId = int32_t;
  struct Config {
    StateId state;
    StackId stack;
    template <typename H>
    friend H AbslHashValue(H h, const Config& c) {
      return H::combine(std::move(h), c.state, c.stack);
    }
    bool operator==(const Config& other) const = default;
    auto operator<=>(const Config& other) const = default;
  };
  struct Frame {
    StateId back;
    StackId below;
    int32_t depth;
  };
  static constexpr int32_t kUnknown = -1;
  // The set that most characters lead to, and which do.
  struct Loop {
    int32_t to = kUnknown;
    bool others = false;         // all beyond ASCII
    uint64_t ascii[2] = {0, 0};  // these of ASCII
  };
  struct Set {
    std::vector<Config> configs;  // sorted; those that take a byte
    bool accepts = false;
    MaskPtr mask = nullptr;  // null: not made yet
    Loop loop = {};
  };
  void Hold(int64_t bytes);
  StackId Push(StateId back, StackId below);
  absl::Status Follow(std::vector<Config> todo, std::vector<Config>* configs, bool* accepts, int64_t* work);
  absl::StatusOr<int32_t> Close(std::vector<Config> todo, int64_t* work);
  int32_t Intern(std::vector<Config> configs, bool accepts);
  size_t NextIndex(int32_t set, uint8_t byte) const {
    return static_cast<size_t>(set) * classes_.size() + classes_.Of(byte);
  }

  // automaton_masks.cc
  struct FoundTokens {
    std::string bits;
    size_t count = 0;
  };
  absl::Status WalkGroup(int32_t set, const TokenTrie::Group& group, FoundTokens* found, int64_t* work);
  absl::StatusOr<Loop> LoopOf(int32_t set, int64_t* work);
  absl::StatusOr<bool> AllLeadTo(int32_t to, int32_t set, const uint8_t (*ranges)[2], int64_t* work);
  absl::StatusOr<bool> TakesAll(int32_t set, const TokenTrie::Beyond& beyond, int64_t* work);

  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<const TokenTrie> trie_;
  AutomatonTotals* const totals_;
  const ByteClasses classes_;
  const int64_t set_bytes_;  // of one, beside its configurations
  std::unique_ptr<Automaton> twin_;
  uint64_t generation_ = 1;
  int64_t bytes_ = 0;
  std::vector<Frame> frames_;  // frame 0 is below the root
  absl::flat_hash_map<std::pair<StateId, StackId>, StackId> frame_ids_;
  std::vector<Set> sets_;      // 0 is kDead
  std::vector<int32_t> next_;  // [sets, classes], or kUnknown
  absl::flat_hash_map<std::pair<std::vector<Config>, bool>, int32_t> set_ids_;
  absl::flat_hash_set<Config> seen_;  // of Follow; empty between calls
};

}  // namespace switchyard::grammar
