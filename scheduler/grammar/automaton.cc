#include "scheduler/grammar/automaton.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::grammar {
namespace {

constexpr int64_t kSetWork = 256;   // of a new set, which costs more memory than time
constexpr int64_t kSetBytes = 320;  // beside its configurations and successors
constexpr int64_t kFrameWork = 8;   // likewise of a new frame
constexpr int64_t kFrameBytes = 48;

absl::Status TooAmbiguous(size_t limit, absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat("the grammar is too ambiguous: more than ", limit, " ", what));
}

absl::Status TooManySteps() { return TooAmbiguous(Automaton::kMaxSteps, "steps to find the ways to go on"); }

absl::Status OutOfWork() {
  return absl::ResourceExhaustedError("finding the tokens that fit takes too long: the grammar is too ambiguous");
}

}  // namespace

Automaton::Automaton(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                     AutomatonTotals* totals)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      totals_(totals),
      classes_(*grammar_),
      set_bytes_(kSetBytes + static_cast<int64_t>(sizeof(int32_t)) * classes_.size()) {
  Forget();
}

Automaton* Automaton::twin() {
  if (twin_ == nullptr) twin_ = std::make_unique<Automaton>(grammar_, trie_, totals_);
  return twin_.get();
}

Automaton::~Automaton() { Hold(-bytes_); }

void Automaton::Hold(int64_t bytes) {
  bytes_ += bytes;
  totals_->bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void Automaton::Forget() {
  ++generation_;
  Hold(-bytes_);
  // (A vector that is assigned {} keeps its memory.)
  frames_ = std::vector<Frame>(1, {.back = -1, .below = -1, .depth = 0});
  frame_ids_ = {};
  sets_ = std::vector<Set>();
  next_ = std::vector<int32_t>();
  set_ids_ = {};
  seen_ = {};
  Intern({}, false);
  std::fill(next_.begin(), next_.end(), kDead);
}

void Automaton::Trim() {
  const bool all_are_many = totals_->bytes.load(std::memory_order_relaxed) > kMaxTotalBytes;
  if (bytes_ > (all_are_many ? kMaxTotalBytes / 64 : kMaxBytes)) Forget();
}

Automaton::StackId Automaton::Push(StateId back, StackId below) {
  const auto [it, is_new] = frame_ids_.try_emplace({back, below}, static_cast<StackId>(frames_.size()));
  if (is_new) {
    frames_.push_back({back, below, frames_[below].depth + 1});
    Hold(kFrameBytes);
  }
  return it->second;
}

// Follows all that takes no byte.
absl::Status Automaton::Follow(std::vector<Config> todo, std::vector<Config>* configs, bool* accepts, int64_t* work) {
  for (size_t steps = 0; !todo.empty(); ++steps) {
    if (--*work < 0) return OutOfWork();
    if (steps + todo.size() > kMaxSteps) return TooManySteps();
    const Config config = todo.back();
    todo.pop_back();
    if (!seen_.insert(config).second) continue;
    const Grammar::State& state = grammar_->state(config.state);
    if (!state.bytes.empty()) {
      if (configs->size() == kMaxConfigs) return TooAmbiguous(kMaxConfigs, "ways to go on");
      configs->push_back(config);
    }
    if (state.ends_rule) {
      if (config.stack == 0) {
        *accepts = true;
      } else {
        todo.push_back({frames_[config.stack].back, frames_[config.stack].below});
      }
    }
    for (const StateId to : state.empties) todo.push_back({to, config.stack});
    for (const Grammar::CallEdge& call : state.calls) {
      // Nothing is left to do behind a last call, so whoever waits for this rule waits for that one.
      const bool is_last = grammar_->state(call.to).only_ends;
      if (!is_last && frames_[config.stack].depth >= kMaxDepth) continue;
      todo.push_back({grammar_->rule(call.rule).start, is_last ? config.stack : Push(call.to, config.stack)});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Automaton::Close(std::vector<Config> todo, int64_t* work) {
  std::vector<Config> configs;
  bool accepts = false;
  const size_t num_frames = frames_.size();
  const absl::Status status = Follow(std::move(todo), &configs, &accepts, work);
  seen_.clear();  // also gives its memory back, if that is much
  *work -= kFrameWork * static_cast<int64_t>(frames_.size() - num_frames);
  RETURN_IF_ERROR(status);
  if (configs.empty() && !accepts) return kDead;
  std::sort(configs.begin(), configs.end());
  return Intern(std::move(configs), accepts);
}

int32_t Automaton::Intern(std::vector<Config> configs, bool accepts) {
  const auto [it, is_new] = set_ids_.try_emplace({configs, accepts}, static_cast<int32_t>(sets_.size()));
  if (!is_new) return it->second;
  Hold(set_bytes_ + static_cast<int64_t>(2 * sizeof(Config) * configs.size()));
  sets_.push_back({.configs = std::move(configs), .accepts = accepts});
  next_.resize(next_.size() + static_cast<size_t>(classes_.size()), kUnknown);
  return it->second;
}

Automaton::Place Automaton::Save(int32_t set) const {
  Place place{.ways = {}, .accepts = sets_[set].accepts};
  for (const Config& config : sets_[set].configs) {
    Place::Way& way = place.ways.emplace_back(Place::Way{.state = config.state, .waiting = {}});
    for (StackId at = config.stack; at != 0; at = frames_[at].below) way.waiting.push_back(frames_[at].back);
    std::reverse(way.waiting.begin(), way.waiting.end());
  }
  return place;
}

int32_t Automaton::Restore(const Place& place) {
  std::vector<Config> configs;
  for (const Place::Way& way : place.ways) {
    StackId stack = 0;
    for (const StateId back : way.waiting) stack = Push(back, stack);
    configs.push_back({way.state, stack});
  }
  std::sort(configs.begin(), configs.end());
  return configs.empty() && !place.accepts ? kDead : Intern(std::move(configs), place.accepts);
}

absl::StatusOr<int32_t> Automaton::Start(int64_t* work) {
  return Close({{grammar_->rule(grammar_->root()).start, 0}}, work);
}

absl::StatusOr<int32_t> Automaton::Next(int32_t set, uint8_t byte, int64_t* work) {
  const size_t at = NextIndex(set, byte);
  if (next_[at] >= 0) return next_[at];
  std::vector<Config> todo;
  for (const Config& config : sets_[set].configs) {
    const std::vector<Grammar::ByteEdge>& edges = grammar_->state(config.state).bytes;
    *work -= static_cast<int64_t>(edges.size() + 3) / 4;
    for (const Grammar::ByteEdge& edge : edges) {
      if (byte >= edge.low && byte <= edge.high) todo.push_back({edge.to, config.stack});
    }
    if (todo.size() > kMaxSteps) return TooManySteps();
  }
  if (*work < 0) return OutOfWork();
  const size_t before = sets_.size();
  ASSIGN_OR_RETURN(const int32_t to, Close(std::move(todo), work));
  if (sets_.size() > before) *work -= kSetWork;
  next_[at] = to;
  return to;
}

}  // namespace switchyard::grammar
