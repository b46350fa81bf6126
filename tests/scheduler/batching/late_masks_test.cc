// Random requests, half of them constrained, whose masks come late and in any order, amid cancels, lost groups and
// masks that cannot be made: ranks always get what they wait for, outputs are those of a run without neighbours, and
// everything ends.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/batching/scheduler.h"
#include "scheduler/grammar/ebnf.h"
#include "tests/scheduler/batching/invariants.h"

namespace switchyard::batching {
namespace {

const absl::Time kNoon = absl::UnixEpoch() + absl::Hours(12);
constexpr int32_t kEnd = 30, kVocabulary = 40;
constexpr int32_t kMostOutputs = 20;
const char kGrammar[] = "root ::= (\"a\" [b-d]{1,2} | [e-g] \"h\" \"i\"?){1,6}";  // token 0 is "a", 1 is "b" …

bool Fits(const grammar::TokenMask& mask, int32_t token) {
  if (mask.bits.empty()) return std::binary_search(mask.ids.begin(), mask.ids.end(), token);
  return ((mask.bits[static_cast<size_t>(token / 8)] >> (token % 8)) & 1) != 0;
}

// What the fake model samples; an empty mask allows all.
int32_t Choose(RequestId request, int32_t output, const grammar::TokenMask& mask) {
  auto token = static_cast<int32_t>((request * 7919 + static_cast<uint64_t>(output) * 104729) % kVocabulary);
  while (!mask.empty() && !Fits(mask, token)) token = (token + 1) % kVocabulary;
  return token;
}

std::shared_ptr<grammar::Automaton> Constraint(grammar::AutomatonTotals* totals) {
  auto grammar = grammar::ParseEbnf(kGrammar);
  std::vector<std::string> tokens(kVocabulary);
  for (int32_t t = 0; t < 26; ++t) tokens[static_cast<size_t>(t)] = std::string(1, static_cast<char>('a' + t));
  return std::make_shared<grammar::Automaton>(*std::move(grammar),
                                              std::make_shared<const grammar::TokenTrie>(std::move(tokens)), totals);
}

struct InFlight {
  StepPlan plan;
  std::optional<StepMasks> masks = std::nullopt;

  bool masked() const {
    for (const RankPlan& rank : plan.ranks) {
      for (const StepItem& item : rank.items) {
        if (item.masked) return true;
      }
    }
    return false;
  }
};

class LateMasks {
 public:
  LateMasks(uint32_t seed, const BatchingPolicy& policy, int32_t num_ranks)
      : random_(seed), num_ranks_(num_ranks), scheduler_(policy), shared_(Constraint(&totals_)) {
    StartGroup();
  }
  void Run(int num_requests) {
    int submitted = 0;
    for (int turn = 0; turn < 4000 && (submitted < num_requests || !scheduler_.Idle()); ++turn) {
      if (submitted < num_requests && OneIn(3)) Submit(static_cast<RequestId>(++submitted));
      if (OneIn(60) && submitted > 0) Cancel(static_cast<RequestId>(Draw(1, submitted)));
      if (OneIn(150)) StartGroup();
      if (OneIn(2)) Plan();
      if (OneIn(3)) MakeMask();
      if (OneIn(2)) Answer();
      Invariants::Check(scheduler_);
      if (testing::Test::HasFailure()) return;
    }
    ASSERT_TRUE(scheduler_.Idle()) << "something waits for ever";
    Check(submitted);
  }
  int64_t late() const { return late_; }           // steps that were answered only after masks had come late
  int64_t in_constraint() const { return ends_; }  // outputs that ended where their text was whole

 private:
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool OneIn(int n) { return Draw(1, n) == 1; }
  static bool IsConstrained(RequestId id) { return id % 2 == 1; }

  void Submit(RequestId id) {
    Request request;
    request.id = id;
    request.prompt = {static_cast<int32_t>(id), 1, 2};
    request.max_tokens = kMostOutputs;
    if (IsConstrained(id)) {
      request.constraint = OneIn(2) ? shared_ : Constraint(&totals_);
      request.end_ids = {kEnd};
      request.sampling.stop_ids = {kEnd};
    }
    ASSERT_TRUE(scheduler_.Submit(std::move(request), kNoon).ok());
    Collect();
  }
  void Cancel(RequestId id) {
    if (scheduler_.Cancel(id, Scheduler::kAllChoices, FinishReason::kAbort, kNoon, &events_)) disturbed_.insert(id);
    Collect();
  }
  void StartGroup() {
    scheduler_.LoseGroup(/*fail_waiting=*/false, kNoon, &events_);
    scheduler_.StartGroup({.epoch = ++epoch_, .num_ranks = num_ranks_, .num_blocks = 24, .lost_from_outside = true},
                          kNoon, &events_);
    in_flight_.clear();
    slots_.clear();
    Collect();
  }
  void Plan() {
    if (std::optional<StepPlan> plan = scheduler_.Plan(kNoon, &events_)) in_flight_.push_back({*std::move(plan)});
    Collect();
  }
  void MakeMask() {
    if (requests_.empty()) return;
    const auto at = requests_.begin() + Draw(0, static_cast<int>(requests_.size()) - 1);
    MaskRequest request = std::move(*at);
    requests_.erase(at);
    MaskAnswer answer{.key = request.key, .mask = request.task.Run(), .work_left = request.task.work};
    if (OneIn(200)) {
      answer.mask = absl::ResourceExhaustedError("too much work");
      disturbed_.insert(request.key.request);
    }
    scheduler_.SetMask(std::move(answer), kNoon, &events_);
    Collect();
  }
  // After each call of the scheduler, as its header asks for.
  void Collect() {
    for (MaskRequest& request : scheduler_.TakeMaskRequests()) requests_.push_back(std::move(request));
    while (std::optional<StepMasks> masks = scheduler_.NextMasks()) {
      ASSERT_EQ(masks->group_epoch, epoch_);
      const auto step = std::find_if(in_flight_.begin(), in_flight_.end(),
                                     [&](const InFlight& each) { return each.plan.step == masks->step; });
      ASSERT_TRUE(step != in_flight_.end() && step->masked() && !step->masks) << "masks that no step awaits";
      step->masks = *std::move(masks);
    }
  }
  // The oldest step's result, unless ranks await its masks.
  void Answer() {
    if (in_flight_.empty()) return;
    if (in_flight_.front().masked() && !in_flight_.front().masks) {
      ++late_;
      return;
    }
    const InFlight step = std::move(in_flight_.front());
    in_flight_.pop_front();
    StepResult result{.step = step.plan.step, .group_epoch = epoch_, .ranks = {}};
    for (int32_t r = 0; r < num_ranks_; ++r) result.ranks.push_back(RunRank(step, r));
    ASSERT_TRUE(scheduler_.Commit(result, kNoon, &events_).ok());
    Collect();
  }
  RankResult RunRank(const InFlight& step, int32_t rank) {
    RankResult result;
    size_t next = 0;
    const std::vector<StepItem>& items = step.plan.ranks[static_cast<size_t>(rank)].items;
    for (size_t i = 0; i < items.size(); ++i) {
      Slot& slot = slots_[{rank, items[i].slot}];
      if (items[i].init) {
        slot = {.request = static_cast<RequestId>(items[i].init->tokens[0]),
                .outputs = static_cast<int32_t>(items[i].init->tokens.size()) - items[i].init->num_prompt_tokens};
      }
      grammar::TokenMask mask;
      EXPECT_EQ(items[i].masked, items[i].sample && IsConstrained(slot.request));
      if (items[i].masked) {
        const std::vector<ItemMask>& masks = step.masks->ranks[static_cast<size_t>(rank)].items;
        EXPECT_TRUE(next < masks.size() && masks[next].item == static_cast<int32_t>(i));
        if (next < masks.size()) mask = masks[next++].mask;
      }
      ItemResult& item = result.items.emplace_back();
      if (items[i].sample) item.tokens.push_back(Choose(slot.request, slot.outputs++, mask));
    }
    EXPECT_EQ(next, step.masks ? step.masks->ranks[static_cast<size_t>(rank)].items.size() : 0u);
    return result;
  }
  // The outputs of a run alone.
  std::pair<std::vector<int32_t>, FinishReason> Alone(RequestId id) {
    std::vector<int32_t> outputs;
    grammar::Matcher matcher(Constraint(&totals_));
    while (static_cast<int32_t>(outputs.size()) < kMostOutputs) {
      grammar::TokenMask mask;
      if (IsConstrained(id)) {
        mask = **matcher.NextMask();
        if (mask.empty()) return {outputs, FinishReason::kStop};
        if (matcher.accepts()) WithEnd(&mask);
      }
      outputs.push_back(Choose(id, static_cast<int32_t>(outputs.size()), mask));
      if (!IsConstrained(id)) continue;
      if (outputs.back() == kEnd) return {outputs, FinishReason::kStop};
      EXPECT_TRUE(matcher.Accept(outputs.back()).ok());
    }
    const bool over = IsConstrained(id) && (*matcher.NextMask())->empty();
    return {outputs, over ? FinishReason::kStop : FinishReason::kLength};
  }
  static void WithEnd(grammar::TokenMask* mask) {
    if (mask->bits.empty()) {
      mask->ids.insert(std::lower_bound(mask->ids.begin(), mask->ids.end(), kEnd), kEnd);
    } else {
      mask->bits[kEnd / 8] = static_cast<char>(mask->bits[kEnd / 8] | (1 << (kEnd % 8)));
    }
  }
  void Check(int submitted) {
    std::map<RequestId, std::vector<int32_t>> outputs;
    std::map<RequestId, FinishReason> reasons;
    for (const Event& event : events_) {
      if (const auto* token = std::get_if<TokenEvent>(&event.what)) outputs[event.request].push_back(token->token);
      if (const auto* end = std::get_if<FinishedEvent>(&event.what)) {
        EXPECT_TRUE(reasons.emplace(event.request, end->reason).second) << "ends once";
      }
    }
    EXPECT_EQ(static_cast<int>(reasons.size()), submitted);
    for (const auto& [id, reason] : reasons) {
      auto [alone, why] = Alone(id);
      if (disturbed_.contains(id)) {
        ASSERT_LE(outputs[id].size(), alone.size());
        alone.resize(outputs[id].size());
      } else {
        EXPECT_EQ(reason, why) << "request " << id;
        ends_ += why == FinishReason::kStop ? 1 : 0;
      }
      EXPECT_EQ(outputs[id], alone) << "request " << id;
    }
  }

  struct Slot {
    RequestId request = 0;
    int32_t outputs = 0;
  };
  std::mt19937 random_;
  const int32_t num_ranks_;
  grammar::AutomatonTotals totals_;
  Scheduler scheduler_;
  const std::shared_ptr<grammar::Automaton> shared_;
  int64_t epoch_ = 0;
  std::deque<InFlight> in_flight_;
  std::map<std::pair<int32_t, SlotId>, Slot> slots_;
  std::vector<MaskRequest> requests_;
  std::vector<Event> events_;
  std::set<RequestId> disturbed_;
  int64_t late_ = 0, ends_ = 0;
};

TEST(LateMasksTest, RanksGetWhatTheyWaitForAndOutputsAreThoseOfARunAlone) {
  int64_t late = 0, ends = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed + 1);
    const auto pick = [&random](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    BatchingPolicy policy;
    policy.max_num_seqs = pick(1, 6);
    policy.block_size = 2;
    policy.max_model_len = 40;
    policy.prefill_chunk = pick(0, 2);
    policy.max_in_flight = pick(1, 3);
    policy.preempt_every_step = pick(0, 3) == 0;
    policy.max_losses = 1000;
    policy.mask_work_at_once = pick(0, 2) * 200;  // none, some or all masks at once
    LateMasks run(seed, policy, pick(1, 3));
    run.Run(30);
    if (testing::Test::HasFailure()) return;
    late += run.late();
    ends += run.in_constraint();
  }
  EXPECT_GT(late, 1000);
  EXPECT_GT(ends, 1000);
}

}  // namespace
}  // namespace switchyard::batching
