#include "tests/simulation/serving/serving_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/link/fleet_codec.h"
#include "proto/link/step_plan_codec.h"
#include "proto/link/step_result_codec.h"
#include "tests/simulation/nodes/server_process.h"

namespace switchyard::simulation {
namespace {

constexpr int kLoadParts = 4;
constexpr size_t kWords = 6;
constexpr int64_t kLateSteps = 30;

}  // namespace

void ServingWorker::Describe(fleet::WorkerInfo* info) const {
  info->architecture = "simulated";
  info->dtype = "fp32";
  info->weights_hash = "h1";
  info->vocab_size = 50;
  info->context = model_.context;
  info->num_layers = 2;
}

void ServingWorker::Take(const v1::LinkResponse& message) {
  if (message.has_join_group()) {
    const absl::StatusOr<fleet::RankAssignment> assignment = link::FromProto(message.join_group());
    if (!assignment.ok()) return world_.Violate(name(), " gets a bad assignment: ", assignment.status().message());
    Join(*assignment);
  } else if (message.has_step_plan()) {
    Plan plan;
    plan.mine = link::FromProto(message.step_plan(), &plan.head, &plan.limit);
    if (plan.head.group_epoch != group_.epoch || memory_ == nullptr) return;
    SayLate(plan.head.step);
    plans_.push_back(std::move(plan));
    RunNext();
  } else if (message.has_step_masks()) {
    batching::StepMasks head;
    batching::RankMasks masks = link::FromProto(message.step_masks(), &head);
    if (head.group_epoch != group_.epoch || memory_ == nullptr) return;
    world_.Require(!masks.items.empty() && masks_.try_emplace(head.step, std::move(masks)).second, name(),
                   " gets no masks, or twice, of step ", head.step);
    if (!awaits_masks_ || awaits_masks_->head.step != head.step) return;
    Compute(*std::exchange(awaits_masks_, std::nullopt));
  } else if (message.has_abort_group() && !message.abort_group().training()) {
    if (message.abort_group().epoch() != group_.epoch) return;
    LeaveGroup();
  }
}

void ServingWorker::Join(const fleet::RankAssignment& assignment) {
  world_.Require(assignment.epoch > group_.epoch, name(), " joins epoch ", assignment.epoch, " after ", group_.epoch);
  LeaveGroup();
  group_ = assignment;
  ++join_;
  world_.Note(name(), ": joins epoch ", group_.epoch, " as rank ", group_.rank);
  if (loaded_by_ == life()) return Meet(join_);
  Load(join_, 0);
}

void ServingWorker::Load(uint64_t join, int part) {
  if (join != join_) return;
  v1::LinkRequest message;
  *message.mutable_load_progress() = link::ToProto(fleet::LoadProgress{
      .epoch = group_.epoch, .phase = fleet::LoadPhase::kWeights, .done = part, .total = kLoadParts});
  Say(message);
  if (part == kLoadParts) {
    loaded_by_ = life();
    return Meet(join);
  }
  After(model_.load * slowness() / kLoadParts, [this, join, part] { Load(join, part + 1); });
}

// Finds its peers, then opens the data plane with them.
void ServingWorker::Meet(uint64_t join) {
  const std::string token = group_.store_token;
  SetInStore(token, absl::StrCat("rank ", group_.rank), [this, join, token](const absl::Status& set) {
    if (join != join_) return;
    if (!set.ok()) return Fault(join, absl::StrCat("rendezvous: ", set.message()));
    std::vector<std::string> keys;
    for (int rank = 0; rank < group_.world; ++rank) keys.push_back(absl::StrCat("rank ", rank));
    const absl::Duration limit = absl::Milliseconds(group_.form_deadline_ms);
    AwaitInStore(token, keys, limit, [this, join, token](const absl::Status& found) {
      if (join != join_) return;
      if (!found.ok()) return Fault(join, absl::StrCat("rendezvous: ", found.message()));
      fabric_ = fabrics_.Of(token, group_.world);
      fabric_->Enter(group_.rank, this, &host(),
                     [this, join](const std::string& why) { Fault(join, absl::StrCat("the group broke: ", why)); });
      fabric_->Arrive(group_.rank, 0, 0, [this, join](int) { SayReady(join); });
    });
  });
}

void ServingWorker::SayReady(uint64_t join) {
  if (join != join_) return;
  memory_ = std::make_unique<RankMemory>(model_.num_slots, model_.num_blocks, model_.block_size);
  v1::LinkRequest message;
  *message.mutable_group_ready() =
      link::ToProto(fleet::GroupReady{.epoch = group_.epoch, .num_kv_blocks = model_.num_blocks, .links = {}});
  said_.push_back(message);
  Say(message);
}

void ServingWorker::RunNext() {
  if (busy_ || plans_.empty() || memory_ == nullptr) return;
  Plan plan = std::move(plans_.front());
  plans_.pop_front();
  if (plan.head.train_slice_ms > 0) return RunNext();
  busy_ = true;
  const absl::Duration time = (model_.step + absl::Microseconds(30) * plan.mine.NumRows()) * slowness();
  After(time, [this, join = join_, plan = std::move(plan)]() mutable {
    if (join == join_ && memory_ != nullptr) Compute(std::move(plan));
  });
}

void ServingWorker::Compute(Plan plan) {
  const int64_t epoch = plan.head.group_epoch, step = plan.head.step;
  if (memory_->IsPoisoned(plan.mine)) return Die("signal 11 (Segmentation fault)");
  const bool masked =
      std::any_of(plan.mine.items.begin(), plan.mine.items.end(), [](const auto& i) { return i.masked; });
  if (masked && !masks_.contains(step)) {
    After(plan.limit, [this, join = join_, step] {
      if (join == join_ && awaits_masks_ && awaits_masks_->head.step == step)
        world_.Violate(name(), " never gets the masks of step ", step);
    });
    awaits_masks_ = std::move(plan);
    return;
  }
  const batching::RankMasks masks = masked ? masks_[step] : batching::RankMasks();
  masks_.erase(step);
  batching::RankResult result;
  if (world_.traces()) {
    plan.head.ranks = {plan.mine};
    world_.Print(absl::StrCat(name(), ": ", plan.head.DebugString()));
    plan.head.ranks.clear();
  }
  const std::string wrong = memory_->Run(plan.mine, masks, &result);
  if (!wrong.empty()) return world_.Violate(name(), " step ", step, " of epoch ", epoch, ": ", wrong);
  result.ledger_hash = static_cast<uint64_t>(step);
  const absl::Duration limit = plan.limit;
  auto waits = std::make_shared<bool>(true);  // shared with the time limit
  fabric_->Arrive(group_.rank, step, 0,
                  [this, join = join_, waits, plan = std::move(plan), result = std::move(result)](int) {
                    *waits = false;
                    if (join == join_ && memory_ != nullptr) Finish(plan, result);
                  });
  After(limit, [this, join = join_, step, waits] {
    if (*waits) Fault(join, absl::StrCat("step ", step, ": a rank does not come"));
  });
}

void ServingWorker::Finish(const Plan& plan, batching::RankResult result) {
  busy_ = false;
  v1::LinkRequest message;
  *message.mutable_step_result() = link::ToProto(plan.head, result);
  if (model_.says_again && plan.head.step <= kLateSteps) late_[plan.head.step] = message;
  said_.push_back(message);
  if (said_.size() > kWords) said_.pop_front();
  Say(message);
  RunNext();
}

// The result of a step of this number in an older epoch comes just now, as if it had been on its way.
void ServingWorker::SayLate(int64_t step) {
  const auto late = late_.find(step);
  if (late == late_.end() || late->second.step_result().group_epoch() >= group_.epoch) return;
  world_.Note(name(), ": says again step ", step, " of epoch ", late->second.step_result().group_epoch());
  Say(late->second);
  late_.erase(late);
}

void ServingWorker::Fault(uint64_t join, const std::string& why) {
  if (join != join_) return;
  const int64_t epoch = group_.epoch;
  world_.Note(name(), ": epoch ", epoch, " fails: ", why);
  LeaveGroup();
  v1::LinkRequest message;
  message.mutable_group_fault()->set_epoch(epoch);
  message.mutable_group_fault()->set_message(why);
  said_.push_back(message);
  Say(message);
}

void ServingWorker::LeaveGroup() {
  ++join_;
  if (fabric_ != nullptr) std::exchange(fabric_, nullptr)->Leave(group_.rank);
  memory_ = nullptr;
  plans_.clear();
  masks_.clear();
  awaits_masks_ = std::nullopt;
  busy_ = false;
}

void ServingWorker::EndSession() {
  LeaveGroup();
  group_ = {};
  if (!model_.says_again) said_.clear();
}

void ServingWorker::BeginSession() {
  // Another server counts its epochs from 1 again; what was said to this one is all that can come late.
  if (boots_ != server_.boots() || said_by_ != life()) {
    said_.clear();
    late_.clear();
  }
  boots_ = server_.boots();
  said_by_ = life();
  if (!said_.empty()) After(world_.random().Skewed(absl::Milliseconds(1), absl::Seconds(2)), [this] { SayAgain(); });
}

// One word after the other, at any time: none may count.
void ServingWorker::SayAgain() {
  if (said_.empty()) return;
  const v1::LinkRequest message = std::move(said_.front());
  said_.pop_front();
  const int64_t epoch = message.has_step_result()   ? message.step_result().group_epoch()
                        : message.has_group_ready() ? message.group_ready().epoch()
                                                    : message.group_fault().epoch();
  if (epoch == group_.epoch) return;
  world_.Note(name(), ": says again what it said in epoch ", epoch);
  Say(message);
  After(world_.random().Skewed(absl::Milliseconds(1), absl::Milliseconds(500)), [this] { SayAgain(); });
}

}  // namespace switchyard::simulation
