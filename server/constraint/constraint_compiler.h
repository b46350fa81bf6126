// Makes automata of the constraints that requests bring (the message Constraint), and keeps the latest.
//
// Thread-safe.  Compiling takes milliseconds, at worst parts of a second: call it on a thread pool.  What it returns
// belongs to the engine's thread, which alone runs it (scheduler/grammar/automaton.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/grammar/automaton.h"
#include "server/constraint/constraint_spec.h"
#include "server/text/tokenizer/tokenizer.h"

namespace switchyard::server {

// Begins and ends the name of a special token in the texts of a ConstraintSpec; in no other text.
inline constexpr char kSpecialMark = '\xFF';
// Puts marks around the names of special tokens (those that texts leave out) in a text of the model's format.
std::string MarkSpecialTokens(const tokenizer::Tokenizer& tokenizer, absl::string_view text);

class ConstraintCompiler {
 public:
  static constexpr size_t kMaxTextBytes = 256 << 10;  // of a constraint
  static constexpr size_t kMaxKept = 64;              // automata that no request uses may be among them
  static constexpr int64_t kMaxStates = 4'000'000;    // of all grammars that live, some 200 bytes each

  // `tokenizer` is borrowed.
  explicit ConstraintCompiler(const tokenizer::Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  // `vocab_size`: the model's; the same in every call.  InvalidArgument: what is wrong with the constraint;
  // ResourceExhausted: those of other requests hold all the memory that constraints may.
  absl::StatusOr<std::shared_ptr<grammar::Automaton>> Compile(const ConstraintSpec& spec, int32_t vocab_size);

  // So far: time spent in Compile, and masks that were made.
  double seconds() const { return seconds_.load(std::memory_order_relaxed); }
  int64_t masks_made() const { return totals_->automata.masks_made.load(std::memory_order_relaxed); }

 private:
  struct Totals {
    grammar::AutomatonTotals automata;
    std::atomic<int64_t> states{0};
  };
  using Kept = std::pair<std::string, std::shared_ptr<grammar::Automaton>>;

  absl::StatusOr<std::shared_ptr<grammar::Automaton>> Make(const ConstraintSpec& spec, int32_t vocab_size);
  std::shared_ptr<const grammar::TokenTrie> Trie(int32_t vocab_size);

  const tokenizer::Tokenizer* const tokenizer_;
  const std::shared_ptr<Totals> totals_ =
      std::make_shared<Totals>();  // shared: with all automata, which may outlive this
  std::atomic<double> seconds_{0};
  absl::Mutex trie_mu_;  // held while the trie is made, once
  std::shared_ptr<const grammar::TokenTrie> trie_ ABSL_GUARDED_BY(trie_mu_);
  absl::Mutex mu_;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mu_);  // the latest used first
  absl::flat_hash_map<std::string, std::list<Kept>::iterator> by_key_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
