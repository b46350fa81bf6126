// Plans from the server to a worker and results back, through the messages and their bytes: nothing is lost.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/api/placement_convert.h"
#include "server/fleet/worker_convert.h"
#include "workers/process/convert.h"
#include "workers/session/service_placement.h"
#include "workers/tensor/process_stats.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

template <class Message>
Message OverTheWire(const Message& message) {
  Message out;
  EXPECT_TRUE(out.ParseFromString(message.SerializeAsString()));
  return out;
}

StepItem FirstItem() {
  StepItem item;
  item.slot = 3;
  item.start_pos = 5;
  item.num_query = 4;
  item.init.emplace();
  item.init->tokens = {9, 8, 7, 0, 2147483647};
  item.init->num_prompt_tokens = 4;
  item.init->adapter = ~uint64_t{0};
  SamplingParams& sampling = item.init->sampling;
  sampling.temperature = 0.1;
  sampling.top_p = 0.95;
  sampling.top_k = 40;
  sampling.min_p = 0.01;
  sampling.presence_penalty = -1.5;
  sampling.frequency_penalty = 1.25;
  sampling.repetition_penalty = 1.1;
  sampling.logit_bias = {{0, -100.5f}, {17, 3.25f}};
  sampling.seed = ~uint64_t{0} - 1;
  sampling.choice = 3;
  sampling.min_tokens = 2;
  sampling.stop_ids = {1, 2};
  sampling.num_logprobs = -1;
  sampling.num_prompt_logprobs = 20;
  sampling.expert_paths_from = 17;
  item.new_blocks = {4, 1, 0};
  item.sample = true;
  item.draft_tokens = {6, 5};
  item.token_mask = uint64_t{1} << 63;
  return item;
}

StepPlan Plan() {
  StepPlan plan;
  plan.step = int64_t{1} << 40;
  plan.group_epoch = 7;
  plan.placement_epoch = 8;
  plan.schedule_version = 2;
  plan.exchange_version = 1;
  plan.micro_batches = 4;
  plan.padded_rows = 96;
  plan.train_slice_ms = 5;
  plan.loans = {{.from = 1, .to = 0, .rows = 12}, {.from = 1, .to = 2, .rows = 7}};
  plan.ranks.resize(2);
  plan.ranks[0].items.resize(3);  // of the other rank: must not arrive
  RankPlan& part = plan.ranks[1];
  part.freed_slots = {2, 0};
  part.copies = {{1, 2}, {3, 4}};
  part.items.push_back(FirstItem());
  part.items.emplace_back();
  part.items.back().slot = 1;
  part.items.back().start_pos = 44;
  part.items.back().num_query = 1;
  return plan;
}

TEST(LinkConvert, APlanArrivesAsItWasSent) {
  const StepPlan plan = Plan();
  StepPlan head;
  const RankPlan part = FromProto(OverTheWire(ToProto(plan, 1, absl::Milliseconds(1500))), &head);
  // Printed they are equal: DebugString prints the whole of a plan but for the sampling state.
  StepPlan arrived = head;
  arrived.ranks = {RankPlan{}, part};
  StepPlan sent = plan;
  sent.ranks[0] = RankPlan{};
  EXPECT_EQ(arrived.DebugString(), sent.DebugString());
  EXPECT_EQ(head.placement_epoch, 8);
  EXPECT_EQ(head.schedule_version, 2);
  EXPECT_EQ(head.exchange_version, 1);
  EXPECT_EQ(head.micro_batches, 4);
  EXPECT_EQ(head.padded_rows, 96);
  EXPECT_EQ(head.train_slice_ms, 5);
  ASSERT_EQ(head.loans.size(), 2u);
  EXPECT_EQ(head.loans[1].from, 1);
  EXPECT_EQ(head.loans[1].to, 2);
  EXPECT_EQ(head.loans[1].rows, 7);
  EXPECT_EQ(part.freed_slots, plan.ranks[1].freed_slots);
  ASSERT_EQ(part.copies.size(), 2u);
  EXPECT_EQ(part.copies[1].from, 3);
  EXPECT_EQ(part.copies[1].to, 4);
  ASSERT_EQ(part.items.size(), 2u);
  EXPECT_FALSE(part.items[1].init);
  EXPECT_FALSE(part.items[1].sample);
  const StepItem& item = part.items[0];
  EXPECT_EQ(item.new_blocks, FirstItem().new_blocks);
  EXPECT_EQ(item.draft_tokens, FirstItem().draft_tokens);
  EXPECT_EQ(item.token_mask, FirstItem().token_mask);
  EXPECT_TRUE(item.sample);
}

TEST(LinkConvert, SamplingArrivesBitForBit) {
  StepPlan head;
  const RankPlan part = FromProto(OverTheWire(ToProto(Plan(), 1, absl::Seconds(1))), &head);
  ASSERT_TRUE(part.items.at(0).init);
  const SlotInit& in = *part.items[0].init;
  const SlotInit out = *FirstItem().init;
  EXPECT_EQ(in.tokens, out.tokens);
  EXPECT_EQ(in.num_prompt_tokens, out.num_prompt_tokens);
  EXPECT_EQ(in.adapter, out.adapter);
  EXPECT_EQ(in.sampling.temperature, out.sampling.temperature);
  EXPECT_EQ(in.sampling.top_p, out.sampling.top_p);
  EXPECT_EQ(in.sampling.top_k, out.sampling.top_k);
  EXPECT_EQ(in.sampling.min_p, out.sampling.min_p);
  EXPECT_EQ(in.sampling.presence_penalty, out.sampling.presence_penalty);
  EXPECT_EQ(in.sampling.frequency_penalty, out.sampling.frequency_penalty);
  EXPECT_EQ(in.sampling.repetition_penalty, out.sampling.repetition_penalty);
  EXPECT_EQ(in.sampling.logit_bias, out.sampling.logit_bias);
  EXPECT_EQ(in.sampling.seed, out.sampling.seed);
  EXPECT_EQ(in.sampling.choice, out.sampling.choice);
  EXPECT_EQ(in.sampling.min_tokens, out.sampling.min_tokens);
  EXPECT_EQ(in.sampling.stop_ids, out.sampling.stop_ids);
  EXPECT_EQ(in.sampling.num_logprobs, -1);
  EXPECT_EQ(in.sampling.num_prompt_logprobs, 20);
  EXPECT_EQ(in.sampling.expert_paths_from, 17);
}

TEST(LinkConvert, ExpertPathsThatNobodyAskedForAreNotTold) {
  StepPlan plan, head;
  plan.ranks.resize(1);
  plan.ranks[0].items.resize(2);
  plan.ranks[0].items[0].init.emplace();
  plan.ranks[0].items[1].init.emplace();
  plan.ranks[0].items[1].init->sampling.expert_paths_from = 0;
  const RankPlan part = FromProto(OverTheWire(ToProto(plan, 0, absl::Seconds(1))), &head);
  EXPECT_EQ(part.items[0].init->sampling.expert_paths_from, -1);
  EXPECT_EQ(part.items[1].init->sampling.expert_paths_from, 0);
}

RankResult Result() {
  RankResult result;
  result.items.resize(2);
  result.items[0].status = ItemStatus::kNonFinite;
  ItemResult& item = result.items[1];
  item.tokens = {5, 6};
  item.logprobs.resize(2);
  item.logprobs[0].chosen = {5, -1.5f, 3};
  item.logprobs[0].top = {{7, -0.5f, 1}, {8, -0.75f, 2}};
  item.prompt_logprobs.resize(1);
  item.prompt_logprobs[0].chosen = {1, -2.5f, 9};
  item.expert_paths = {0, -1, 32767};
  result.expert_counts = {int64_t{1} << 40, 0, 2};
  result.decode_expert_counts = {3, 0, 1};
  result.rows = 10;
  result.rows_sent = 11;
  result.rows_received = 12;
  result.expert_rows = 13;
  result.ledger_hash = ~uint64_t{0} - 3;
  result.timings = {1.5, 0.25, 0.5, 0.125, 0.0625, 0.03125, 0.015625};
  result.fine_tuned_layers = 14;
  return result;
}

TEST(LinkConvert, AResultArrivesAsItWasSent) {
  StepPlan head;
  head.step = 9;
  head.group_epoch = 4;
  const v1::StepResult message = OverTheWire(ToProto(head, Result()));
  EXPECT_EQ(message.step(), 9);
  EXPECT_EQ(message.group_epoch(), 4);
  const RankResult in = FromProto(message);
  ASSERT_EQ(in.items.size(), 2u);
  EXPECT_EQ(in.items[0].status, ItemStatus::kNonFinite);
  EXPECT_EQ(in.items[1].status, ItemStatus::kOk);
  EXPECT_EQ(in.items[1].tokens, (std::vector<int32_t>{5, 6}));
  ASSERT_EQ(in.items[1].logprobs.size(), 2u);
  EXPECT_EQ(in.items[1].logprobs[0].chosen.rank, 3);
  ASSERT_EQ(in.items[1].logprobs[0].top.size(), 2u);
  EXPECT_EQ(in.items[1].logprobs[0].top[1].logprob, -0.75f);
  EXPECT_EQ(in.items[1].prompt_logprobs.at(0).chosen.token, 1);
  EXPECT_EQ(in.items[1].expert_paths, (std::vector<int16_t>{0, -1, 32767}));
  EXPECT_EQ(in.expert_counts, Result().expert_counts);
  EXPECT_EQ(in.decode_expert_counts, Result().decode_expert_counts);
  EXPECT_EQ(in.rows, 10);
  EXPECT_EQ(in.rows_sent, 11);
  EXPECT_EQ(in.rows_received, 12);
  EXPECT_EQ(in.expert_rows, 13);
  EXPECT_EQ(in.ledger_hash, Result().ledger_hash);
  EXPECT_EQ(in.timings.total_seconds, 1.5);
  EXPECT_EQ(in.timings.attention_seconds, 0.25);
  EXPECT_EQ(in.timings.expert_seconds, 0.5);
  EXPECT_EQ(in.timings.exchange_seconds, 0.125);
  EXPECT_EQ(in.timings.head_seconds, 0.0625);
  EXPECT_EQ(in.timings.gather_seconds, 0.03125);
  EXPECT_EQ(in.timings.decide_seconds, 0.015625);
  EXPECT_EQ(in.fine_tuned_layers, 14);
}

TEST(LinkConvert, APlanSaysHowLongToWait) {
  EXPECT_EQ(ToProto(Plan(), 1, absl::Milliseconds(1500)).timeout_ms(), 1500);
  EXPECT_EQ(ToProto(Plan(), 1, absl::Microseconds(1)).timeout_ms(), 1) << "0 would mean: at once";
}

// 0 … count-1 as positions, each with two more entries.
std::vector<PositionLogprobs> Positions(int count, int first) {
  std::vector<PositionLogprobs> out(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    out[i].chosen = {first + i, -1.0f * static_cast<float>(i), 3};
    out[i].top = {{1, -0.5f, 1}, {2, -0.75f, 2}};
  }
  return out;
}

TEST(LinkConvert, ALongResultGoesInPartsAndComesTogether) {
  StepPlan head;
  head.step = 9;
  head.group_epoch = 4;
  RankResult sent;
  sent.items.resize(3);
  sent.items[0].prompt_logprobs = Positions(100, 1000);
  sent.items[2].prompt_logprobs = Positions(7, 2000);
  sent.items[2].logprobs = Positions(30, 3000);
  sent.items[2].tokens = {7};
  sent.items[1].expert_paths.resize(1000);  // 125 entries
  std::iota(sent.items[1].expert_paths.begin(), sent.items[1].expert_paths.end(), int16_t{-1});
  EXPECT_TRUE(CutIntoParts(head, &sent, 137 * 3 + 125).empty()) << "what fits goes in one message";
  const std::vector<v1::StepPart> parts = CutIntoParts(head, &sent, 60);
  EXPECT_EQ(parts.size(), 5u + 3u + 2u + 1u);
  RankResult in = FromProto(OverTheWire(ToProto(head, sent)));
  ASSERT_EQ(in.items.size(), 3u);
  for (const ItemResult& item : in.items) {
    EXPECT_TRUE(item.logprobs.empty() && item.prompt_logprobs.empty() && item.expert_paths.empty());
  }
  for (const v1::StepPart& part : parts) {
    EXPECT_EQ(part.step(), 9);
    EXPECT_EQ(part.group_epoch(), 4);
    EXPECT_LE(part.logprobs_size() + part.prompt_logprobs_size(), 20);
    EXPECT_LE(part.expert_paths().size(), 60u * 16);
    EXPECT_TRUE(AddPart(OverTheWire(part), &in));
  }
  ASSERT_EQ(in.items[0].prompt_logprobs.size(), 100u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(in.items[0].prompt_logprobs[i].chosen.token, 1000 + i);
    EXPECT_EQ(in.items[0].prompt_logprobs[i].top.size(), 2u);
  }
  ASSERT_EQ(in.items[2].logprobs.size(), 30u);
  EXPECT_EQ(in.items[2].logprobs[29].chosen.token, 3029);
  ASSERT_EQ(in.items[2].prompt_logprobs.size(), 7u);
  EXPECT_EQ(in.items[2].prompt_logprobs[6].chosen.token, 2006);
  EXPECT_TRUE(in.items[1].logprobs.empty());
  std::vector<int16_t> paths(1000);
  std::iota(paths.begin(), paths.end(), int16_t{-1});
  EXPECT_EQ(in.items[1].expert_paths, paths);
}

TEST(LinkConvert, APartOfNoItemIsLeftOut) {
  v1::StepPart part;
  part.add_logprobs();
  RankResult result;
  EXPECT_FALSE(AddPart(part, &result));
  result.items.resize(1);
  EXPECT_TRUE(AddPart(part, &result));
  part.set_item(-1);
  EXPECT_FALSE(AddPart(part, &result));
}

TEST(LinkConvert, MalformedResultsAreReadAsFarAsTheyGo) {
  v1::StepResult message;
  message.add_items()->set_expert_paths("abc");  // half a number too many
  message.mutable_items(0)->set_status(77);
  const RankResult in = FromProto(message);
  EXPECT_EQ(in.items.at(0).expert_paths.size(), 1u);
  EXPECT_EQ(in.items[0].status, ItemStatus::kNonFinite) << "an unknown status is no success";
}

TEST(LinkConvert, ASeatArrivesAsItWasGiven) {
  GroupSeat seat;
  seat.epoch = 3;
  seat.rank = 1;
  seat.world = 2;
  seat.num_layers = 12;
  seat.store_token = "t";
  seat.form_deadline_ms = 30000;
  const v1::JoinGroup message = OverTheWire(ToProto(seat));
  EXPECT_EQ(message.mesh().ep(), 2);
  EXPECT_EQ(message.layer_end(), 12);
  ASSERT_EQ(message.groups_size(), 1);
  EXPECT_EQ(message.groups(0).members_size(), 2);
  const Seat in = *FromProto(message);
  EXPECT_EQ(in.epoch, 3);
  EXPECT_EQ(in.rank, 1);
  EXPECT_EQ(in.world, 2);
  EXPECT_EQ(in.token, "t");
  EXPECT_EQ(in.form_timeout, absl::Seconds(30));
}

TEST(ProcessStats, AreBelievable) {
  EXPECT_GT(ResidentBytes(), 1 << 20);
  EXPECT_LT(ResidentBytes(), MachineMemoryBytes());
}

TEST(LinkConvert, PlacementSettingsArrive) {
  const PlacementSettings sent = {
      .mode = PlacementMode::kAgreed, .spare_slots = 2, .replica_slots = 1, .rebalance_steps = 300};
  v1::EngineOptions options;
  *options.mutable_placement() = ToProto(sent);
  const absl::StatusOr<EngineSettings> arrived = FromProto(OverTheWire(options));
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(arrived->placement, sent);
  EXPECT_EQ(FromProto(v1::EngineOptions())->placement, PlacementSettings());
  options.mutable_placement()->set_mode("best");
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(options).status()));
  options.mutable_placement()->set_mode("central");  // with a slow loop, which it cannot have
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(options).status()));
}

TEST(LinkConvert, PlacesArriveWithTheSeat) {
  GroupSeat seat;
  seat.epoch = 3;
  seat.rank = 1;
  seat.world = 2;
  seat.placement.epoch = 9;
  seat.placement.costs = {.copy_ps = int64_t{1} << 40, .row_ps = 2, .layer_ps = 3};
  seat.placement.residents.assign(2, ContiguousPlacement(5, 2, 1));
  seat.placement.residents[1].slots[0] = {4, kEmptySlot, 0, 1};
  const v1::JoinGroup message = OverTheWire(ToProto(seat));
  const absl::StatusOr<Seat> arrived = FromProto(message);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(arrived->placement.epoch, 9);
  EXPECT_EQ(arrived->placement.costs, seat.placement.costs);
  EXPECT_EQ(arrived->placement.residents, seat.placement.residents);
  EXPECT_TRUE(arrived->placement.offloaded.empty());
  seat.placement.offloaded.assign(2, std::vector<bool>(5));
  seat.placement.offloaded[1][3] = true;
  EXPECT_EQ(FromProto(OverTheWire(ToProto(seat)))->placement.offloaded, seat.placement.offloaded);

  v1::JoinGroup wrong = message;
  wrong.mutable_placement()->mutable_layers(1)->add_offloaded(5);
  EXPECT_THAT(FromProto(wrong).status().message(), HasSubstr("offloaded expert 5, the layer has 5"));
  wrong = message;
  wrong.mutable_placement()->mutable_layers(1)->add_experts(3);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(wrong).status()));
  for (const int32_t slots : {0, -4, 3, 1 << 30}) {  // 2^30 x 4 is 0 in 32 bits
    wrong = message;
    wrong.mutable_placement()->set_slots(slots);
    EXPECT_TRUE(absl::IsInvalidArgument(FromProto(wrong).status())) << slots;
  }
  for (const int32_t rank : {-1, 2}) {
    wrong = message;
    wrong.set_rank(rank);
    EXPECT_TRUE(absl::IsInvalidArgument(FromProto(wrong).status())) << rank;
  }
}

TEST(LinkConvert, AStageArrives) {
  PlacementStage sent;
  sent.epoch = 12;
  sent.arrivals = {{MoveKind::kCopy, 1, 2, 3, 4}, {MoveKind::kLoad, 5, 6, 7, 8}, {MoveKind::kRehome, 9, 10, 11, 12}};
  sent.departures = {{MoveKind::kRelease, 13, 14, 15, 16}, {MoveKind::kOffload, 17, 18, 19, 20}};
  sent.costs = {.copy_ps = 5, .row_ps = 6, .layer_ps = 7};
  const v1::PreparePlacement message = OverTheWire(ToProto(sent, 4));
  EXPECT_EQ(message.group_epoch(), 4);
  const absl::StatusOr<PlacementStage> arrived = FromProto(message);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(arrived->epoch, 12);
  EXPECT_EQ(arrived->arrivals, sent.arrivals);
  EXPECT_EQ(arrived->departures, sent.departures);
  EXPECT_EQ(arrived->costs, sent.costs);
  for (const int kind : {0, 6, -1}) {
    v1::PreparePlacement wrong = message;
    wrong.mutable_departures()->set_kinds(1, static_cast<v1::ResidencyMoveKind>(kind));
    EXPECT_TRUE(absl::IsInvalidArgument(FromProto(wrong).status())) << kind;
  }
  for (const bool longer : {true, false}) {
    v1::PreparePlacement wrong = message;
    longer ? wrong.mutable_arrivals()->add_slots(1) : wrong.mutable_arrivals()->mutable_devices()->RemoveLast();
    EXPECT_TRUE(absl::IsInvalidArgument(FromProto(wrong).status())) << longer;
  }
}

}  // namespace
}  // namespace switchyard
