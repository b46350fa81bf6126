// Each struct of the worker link there and back, with another value in each field: a field that a codec forgets has its
// default on one side.  A struct with one more field does not compile here, so that the field gets a value.
#include "tests/proto/link/round_trip.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/link/engine_settings_codec.h"
#include "proto/link/expert_report_codec.h"
#include "proto/link/group_seat_codec.h"
#include "proto/link/job_spec_codec.h"
#include "proto/link/link_protocol.h"
#include "proto/link/placement_codec.h"
#include "proto/link/sampling_codec.h"
#include "proto/link/step_plan_codec.h"
#include "proto/link/step_result_codec.h"
#include "proto/link/train_progress_codec.h"
#include "proto/link/training_seat_codec.h"
#include "proto/link/worker_info_codec.h"

namespace switchyard {
namespace {

using test::Distinct;
using test::OverTheWire;
using test::Unset;
using testing::IsEmpty;

SamplingParams Sampling() {
  SamplingParams out;
  auto& [temperature, top_p, top_k, min_p, presence, frequency, repetition, bias, seed, choice, min_tokens, stop_ids,
         logprobs, prompt_logprobs, paths_from] = out;
  Distinct().Fill(temperature, top_p, top_k, min_p, presence, frequency, repetition, bias, seed, choice, min_tokens,
                  stop_ids, logprobs, prompt_logprobs, paths_from);
  seed = ~uint64_t{0} - 1;
  return out;
}

StepPlan Plan() {
  StepPlan out;
  auto& [step, group_epoch, placement_epoch, exchange, micro_batches, loans, padded_rows, slice, ranks] = out;
  Distinct values;
  values.Fill(step, group_epoch, placement_epoch, exchange, micro_batches, padded_rows, slice);
  step += int64_t{1} << 40;
  for (auto& [from, to, rows] : (loans.resize(2), loans)) values.Fill(from, to, rows);
  ranks.resize(2);
  ranks[0].items.resize(3);  // of the other rank: must not arrive
  auto& [freed, copies, items] = ranks[1];
  values.Fill(freed);
  for (auto& [from, to] : (copies.resize(2), copies)) values.Fill(from, to);
  items.resize(2);
  items[1].slot = 7;
  auto& [slot, start, num_query, init, blocks, sample] = items[0];
  values.Fill(slot, start, num_query, blocks, sample);
  auto& [tokens, num_prompt, sampling] = init.emplace();
  values.Fill(tokens, num_prompt);
  sampling = Sampling();
  return out;
}

RankResult Result() {
  RankResult out;
  auto& [items, counts, decode_counts, rows, sent, received, expert_rows, layer_rows, tuned, hash, timings] = out;
  Distinct values;
  values.Fill(counts, decode_counts, rows, sent, received, expert_rows, layer_rows, tuned, hash);
  counts[0] = int64_t{1} << 40;
  hash = ~uint64_t{0} - 3;
  items.resize(2);
  auto& [status, tokens, logprobs, prompt_logprobs, paths] = items[0];
  status = ItemStatus::kNonFinite;
  values.Fill(tokens, paths);
  paths.push_back(-1);
  for (std::vector<PositionLogprobs>* positions : {&logprobs, &prompt_logprobs}) {
    for (auto& [chosen, top] : (positions->resize(2), *positions)) {
      top.resize(2);
      for (TokenLogprob* each : {&chosen, &top[0], &top[1]}) {
        auto& [token, logprob, rank] = *each;
        values.Fill(token, logprob, rank);
      }
    }
  }
  auto& [total, attention, expert, exchange, head, gather, decide, decide_cpu] = timings;
  values.Fill(total, attention, expert, exchange, head, gather, decide);
  decide_cpu = 0;  // stays on the worker
  return out;
}

GroupPlacement Places() {
  GroupPlacement out;
  auto& [epoch, residents, offloaded, costs] = out;
  auto& [copy, row, layer] = costs;
  Distinct().Fill(epoch, copy, row, layer);
  copy = int64_t{1} << 40;
  residents.assign(2, ContiguousPlacement(5, 2, 1));
  residents[1].slots[0] = {4, kEmptySlot, 0, 1};
  offloaded.assign(2, std::vector<bool>(5));
  offloaded[0][3] = offloaded[1][2] = true;
  return out;
}

JobSpec Spec() {
  JobSpec out;
  auto& [base, architecture, datasets, evaluation, dtype, steps, length, batch, micro_batch, workers, on_serving,
         optimizer, balance, balance_weight, z_weight, capacity, bias_rate, recompute, communication, offload, seed,
         evaluate_every, checkpoints, max_runtime, labels] = out;
  Distinct values;
  values.Fill(base, architecture, datasets, evaluation, steps, length, batch, micro_batch, workers, on_serving,
              balance_weight.emplace(), z_weight, capacity, bias_rate, recompute, seed, evaluate_every, max_runtime,
              labels);
  dtype = TrainDType::kF64;
  balance = BalanceLoss::kPerLayer;
  offload = OffloadPolicy::kNever;
  auto& [schedule, beta1, beta2, epsilon, weight_decay, clip_norm] = optimizer;
  auto& [shape, peak, final_fraction, warmup, total_steps, decay] = schedule;
  values.Fill(beta1, beta2, epsilon, weight_decay, clip_norm, peak, final_fraction, warmup, decay);
  shape = LrShape::kWsd;
  total_steps = steps;  // by the struct's rule
  auto& [mode, piece_bytes] = communication;
  mode = CommMode::kPartition;
  auto& [every, keep_last, keep_every] = checkpoints;
  values.Fill(piece_bytes, every, keep_last, keep_every);
  return out;
}

TEST(LinkRoundTrip, Sampling) {
  const v1::SamplingPlan message = OverTheWire(ToProto(Sampling()));
  EXPECT_THAT(Unset(message), IsEmpty());
  EXPECT_EQ(FromProto(message), Sampling());
}

TEST(LinkRoundTrip, APlan) {
  const v1::StepPlan message = OverTheWire(ToProto(Plan(), 1, absl::Milliseconds(1500)));
  EXPECT_THAT(Unset(message), IsEmpty());
  StepPlan head;
  absl::Duration limit;
  head.ranks = {{}, FromProto(message, &head, &limit)};
  StepPlan sent = Plan();
  sent.ranks[0] = {};
  EXPECT_EQ(head, sent);
  EXPECT_EQ(limit, absl::Milliseconds(1500));
}

TEST(LinkRoundTrip, AResult) {
  const v1::StepResult message = OverTheWire(ToProto(Plan(), Result()));
  EXPECT_THAT(Unset(message), IsEmpty());
  EXPECT_EQ(message.step(), Plan().step);
  EXPECT_EQ(message.group_epoch(), Plan().group_epoch);
  EXPECT_EQ(FromProto(message), Result());
}

TEST(LinkRoundTrip, ARegistration) {
  WorkerInfo info;
  auto& [incarnation, host, pid, role, device, isa, weights_hash, join_token, local_index, collective, metrics,
         architecture, dtype, vocab, context, layers, moe_layers, experts, top_k, eos, long_rope, loan_rows,
         expert_bytes, budget, peer, also_trains] = info;
  auto& [percent, bytes] = budget.emplace();
  Distinct().Fill(percent, bytes, incarnation, host, pid, role, device, isa, weights_hash, join_token, local_index,
                  collective, metrics, architecture, dtype, vocab, context, layers, moe_layers, experts, top_k, eos,
                  long_rope, loan_rows, expert_bytes);
  const v1::Register message = OverTheWire(ToProto(info));
  EXPECT_THAT(Unset(message), IsEmpty());
  EXPECT_EQ(message.protocol_version(), kProtocolVersion);
  EXPECT_EQ(FromProto(message), info);
}

TEST(LinkRoundTrip, Settings) {
  EngineSettings settings;
  auto& [block_size, kv_cache_bytes, seqs, tokens, model_len, yield_ms, placement] = settings;
  auto& [mode, spare, replicas, steps] = placement;
  Distinct().Fill(block_size, kv_cache_bytes, seqs, tokens, model_len, yield_ms, spare, replicas, steps);
  mode = PlacementMode::kAgreed;
  const v1::EngineOptions message = OverTheWire(ToProto(settings));
  EXPECT_THAT(Unset(message), IsEmpty());
  const absl::StatusOr<EngineSettings> arrived = FromProto(message);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, settings);
}

TEST(LinkRoundTrip, ASeat) {
  GroupSeat seat;
  auto& [epoch, rank, world, token, deadline, reach, placement] = seat;
  Distinct().Fill(epoch, token, deadline, reach);
  rank = 1;
  world = 2;
  placement = Places();
  const v1::JoinGroup message = OverTheWire(ToProto(seat));
  EXPECT_THAT(Unset(message), IsEmpty());
  const absl::StatusOr<GroupSeat> arrived = FromProto(message);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, seat);
}

TEST(LinkRoundTrip, AStage) {
  PlacementStage stage;
  auto& [epoch, arrivals, departures, costs] = stage;
  auto& [copy, row, layer] = costs;
  Distinct().Fill(epoch, copy, row, layer);
  arrivals = {{MoveKind::kCopy, 1, 2, 3, 4}, {MoveKind::kLoad, 5, 6, 7, 8}, {MoveKind::kRehome, 9, 10, 11, 12}};
  departures = {{MoveKind::kRelease, 13, 14, 15, 16}, {MoveKind::kOffload, 17, 18, 19, 20}};
  const v1::PreparePlacement message = OverTheWire(ToProto(stage, 4));
  EXPECT_THAT(Unset(message), IsEmpty());
  EXPECT_EQ(message.group_epoch(), 4);
  const absl::StatusOr<PlacementStage> arrived = FromProto(message);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, stage);
}

TEST(LinkRoundTrip, AReport) {
  ExpertReport report;
  auto& [standings, placements, origins, copied_bytes, copy_seconds] = report;
  Distinct().Fill(copied_bytes, copy_seconds);
  standings.resize(2);
  standings[0].batches = 1;
  standings[0].accuracy = 0.5;
  standings[0].distance = 0.25;
  auto& [layer, phase, ahead, estimator, batches, accuracy, distance, state, used, off_distance, marginal] =
      standings[1];
  layer = 1;
  phase = Phase::kDecode;
  ahead = 2;
  estimator = LiveEstimator::kBlend;
  batches = int64_t{1} << 33;
  accuracy = 1;
  distance = 0.125;
  state = EstimatorState::kOff;
  used = true;
  off_distance = 0.75;
  marginal = 0.5;
  placements = {{.num_experts = 4, .slots = {{0, 1}, {2, 3, 0}}},
                {.num_experts = 4, .slots = {{0, kEmptySlot}, {1, 2, 3}}}};
  origins.assign(2, std::vector<SlotOrigin>(5, SlotOrigin::kStart));
  origins[0][4] = SlotOrigin::kGate;
  origins[1][2] = SlotOrigin::kEstimate;
  const v1::ExpertReport message = OverTheWire(ToProto(report, 9));
  EXPECT_THAT(Unset(message), IsEmpty());
  EXPECT_EQ(message.group_epoch(), 9);
  const absl::StatusOr<ExpertReport> arrived = FromProto(message, 2, 4);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, report);
}

TEST(LinkRoundTrip, ASpec) {
  const v1::JobSpec message = OverTheWire(ToProto(Spec()));
  EXPECT_THAT(Unset(message), IsEmpty());
  const auto error = [](const SpecProblem& problem) { return absl::InternalError(problem.text); };
  const absl::StatusOr<JobSpec> arrived = FromProto(message, {.name = "test", .error = error});
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, Spec());
}

TEST(LinkRoundTrip, AnAttempt) {
  TrainingSeat seat;
  auto& [epoch, attempt, job_id, spec, data, evaluation, rank, world, token, deadline, reach] = seat;
  Distinct().Fill(epoch, attempt, token, deadline, reach);
  job_id = "job-1";
  spec.base_checkpoint = "base";
  spec.datasets = {"a.bin"};
  spec.steps = spec.optimizer.schedule.total_steps = 10;
  spec.sequence_length = 8;
  spec.batch_sequences = 4;
  data = {{.of_job = true, .name = "a.bin"}, {.of_job = false, .name = "b.bin"}};
  evaluation = {{.of_job = false, .name = "c.bin"}};
  rank = 1;
  world = 2;
  const v1::StartTraining message = OverTheWire(ToProto(seat));
  for (const std::string& name : Unset(message))
    EXPECT_EQ(name.rfind("spec.", 0), 0u) << name << ", which ASpec has not";
  const absl::StatusOr<TrainingSeat> arrived = FromProto(message);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, seat);
}

TEST(LinkRoundTrip, Progress) {
  TrainProgress progress;
  auto& [step, loss, balance, z, rate, norm, tokens, speed, seconds, dropped, dead, packing, skipped, num_skipped] =
      progress;
  auto& [total, forward, backward, experts, all_to_all, all_reduce, optimizer, data] = seconds;
  Distinct().Fill(step, loss, balance, z, rate, norm, tokens, speed, dropped, dead, packing, skipped, num_skipped,
                  total, forward, backward, experts, all_to_all, all_reduce, optimizer, data);
  const v1::TrainProgress message = OverTheWire(ToProto(progress));
  EXPECT_THAT(Unset(message), IsEmpty());
  EXPECT_EQ(FromProto(message), progress);
}

TEST(LinkRoundTrip, WhatTrainingHasMade) {
  EvaluationResult result;
  auto& [step, loss, tokens] = result;
  Distinct().Fill(step, loss, tokens);
  const v1::EvaluationResult evaluated = OverTheWire(ToProto(result));
  EXPECT_THAT(Unset(evaluated), IsEmpty());
  EXPECT_EQ(FromProto(evaluated), result);
  SavedCheckpoint checkpoint;
  auto& [saved_step, folder, bytes, seconds, unix_ms] = checkpoint;
  Distinct().Fill(saved_step, folder, bytes, seconds, unix_ms);
  const v1::SavedCheckpoint saved = OverTheWire(ToProto(checkpoint));
  EXPECT_THAT(Unset(saved), IsEmpty());
  EXPECT_EQ(FromProto(saved), checkpoint);
}

TEST(LinkRoundTrip, HowTrainingEnds) {
  for (const TrainOutcome outcome : {TrainOutcome::kFinished, TrainOutcome::kStopped}) {
    EXPECT_EQ(FromProto(OverTheWire(ToProto(TrainEnd{outcome, absl::OkStatus()}, 3))),
              (TrainEnd{outcome, absl::OkStatus()}));
  }
  for (const TrainOutcome outcome : {TrainOutcome::kLost, TrainOutcome::kFailed, TrainOutcome::kBlocked}) {
    const TrainEnd end = {outcome, absl::DataLossError("no number")};
    const v1::TrainingEnded message = OverTheWire(ToProto(end, 3));
    EXPECT_THAT(Unset(message), IsEmpty());
    EXPECT_EQ(message.epoch(), 3);
    EXPECT_EQ(FromProto(message), end);
  }
  v1::TrainingEnded unknown;
  EXPECT_EQ(FromProto(unknown).outcome, TrainOutcome::kLost);
  EXPECT_EQ(FromProto(unknown).status.code(), absl::StatusCode::kUnknown);
  unknown.set_outcome(static_cast<v1::TrainingOutcome>(77));
  EXPECT_EQ(FromProto(unknown).outcome, TrainOutcome::kLost);
  for (const StopKind kind : {StopKind::kSave, StopKind::kNow}) EXPECT_EQ(*FromProto(ToProto(kind)), kind);
}

// The check itself: a message that lacks something is told.
TEST(LinkRoundTrip, WhatIsUnsetIsNamed) {
  v1::StepPlan message = ToProto(Plan(), 1, absl::Seconds(1));
  message.clear_micro_batches();
  message.mutable_items(0)->mutable_init()->mutable_sampling()->clear_top_p();
  EXPECT_THAT(Unset(message), testing::UnorderedElementsAre("micro_batches", "items.init.sampling.top_p"));
}

}  // namespace
}  // namespace switchyard
