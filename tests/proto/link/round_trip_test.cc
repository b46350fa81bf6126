// Each struct of the worker link there and back, with another value in each field: a field that a codec forgets has its
// default on one side.  A struct with one more field does not compile here, so that the field gets a value.
#include "tests/proto/link/round_trip.h"

#include <cmath>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/link/fleet_codec.h"
#include "proto/link/job_spec_codec.h"
#include "proto/link/link_protocol.h"
#include "proto/link/placement_codec.h"
#include "proto/link/step_plan_codec.h"
#include "proto/link/step_result_codec.h"
#include "proto/link/training_assignment_codec.h"

namespace switchyard::link {
namespace {

using test::Distinct;
using test::OverTheWire;
using test::Unset;
using testing::IsEmpty;

batching::SamplingParams Sampling() {
  batching::SamplingParams out;
  auto& [temperature, top_p, top_k, min_p, presence, frequency, repetition, bias, seed, choice, min_tokens, stop_ids,
         logprobs, prompt_logprobs, constrained, paths_from] = out;
  test::Distinct().Fill(temperature, top_p, top_k, min_p, presence, frequency, repetition, bias, seed, choice,
                        min_tokens, stop_ids, logprobs, prompt_logprobs, constrained, paths_from);
  seed = ~uint64_t{0} - 1;
  return out;
}

batching::StepPlan Plan() {
  batching::StepPlan out;
  auto& [step, group_epoch, exchange, micro_batches, transfers, rank_rows, decides, costs, slice, ranks] = out;
  auto& [copy, weights, row] = costs;
  test::Distinct values;
  values.Fill(step, group_epoch, exchange, micro_batches, rank_rows, copy, weights, row, slice);
  EXPECT_TRUE(decides);
  step += int64_t{1} << 40;
  for (auto& [from, to, rows] : (transfers.resize(2), transfers)) values.Fill(from, to, rows);
  ranks.resize(2);
  ranks[0].items.resize(3);  // of the other rank: must not arrive
  auto& [freed, items] = ranks[1];
  values.Fill(freed);
  items.resize(2);
  items[1].slot = 7;
  auto& [slot, start, num_query, init, blocks, sample, masked] = items[0];
  values.Fill(slot, start, num_query, blocks, sample, masked);
  auto& [tokens, num_prompt, sampling, adapter] = init.emplace();
  values.Fill(tokens, num_prompt, adapter);
  sampling = Sampling();
  return out;
}

batching::StepMasks Masks() {
  batching::StepMasks out;
  auto& [step, group_epoch, ranks] = out;
  Distinct values;
  values.Fill(step, group_epoch);
  ranks.resize(2);
  auto& [items] = ranks[1];
  items.resize(2);
  auto& [item, mask] = items[0];
  auto& [ids, bits] = mask;
  values.Fill(item, ids);
  bits = "\x81";
  return out;
}

batching::RankResult Result() {
  batching::RankResult out;
  auto& [items, counts, decode_counts, rows, sent, received, expert_rows, layer_rows, layer_seconds, read, tuned, hash,
         timings] = out;
  test::Distinct values;
  values.Fill(counts, decode_counts, rows, sent, received, expert_rows, layer_rows, layer_seconds, read, tuned, hash);
  counts[0] = int64_t{1} << 40;
  hash = ~uint64_t{0} - 3;
  items.resize(2);
  auto& [status, tokens, logprobs, prompt_logprobs, paths] = items[0];
  status = batching::ItemStatus::kNonFinite;
  values.Fill(tokens, paths);
  paths.push_back(-1);
  for (std::vector<batching::PositionLogprobs>* positions : {&logprobs, &prompt_logprobs}) {
    for (auto& [chosen, top] : (positions->resize(2), *positions)) {
      top.resize(2);
      for (batching::TokenLogprob* each : {&chosen, &top[0], &top[1]}) {
        auto& [token, logprob, rank] = *each;
        values.Fill(token, logprob, rank);
      }
    }
  }
  auto& [total, attention, expert, routed, exchange, head, masks, gather, decide, decide_cpu] = timings;
  values.Fill(total, attention, expert, routed, exchange, head, masks, gather, decide);
  decide_cpu = 0;  // stays on the worker
  return out;
}

jobs::JobSpec Spec() {
  jobs::JobSpec out;
  auto& [base, architecture, datasets, weights, evaluation, names, dtype, steps, epochs, length, document_mask, packing,
         batch, micro_batch, workers, on_serving, optimizer, parameters, lora, dpo, dropout, jitter, balance,
         balance_weight, z_weight, capacity, bias_rate, recompute, restore, communication, offload, zero, seed,
         evaluate_every, checkpoints, early_stop, max_runtime, labels] = out;
  test::Distinct values;
  values.Fill(base, architecture, datasets, weights, evaluation, names, steps, epochs, length, document_mask, batch,
              micro_batch, workers, on_serving, balance_weight.emplace(), z_weight, capacity, bias_rate, recompute,
              zero, seed, evaluate_every, max_runtime, labels);
  dtype = jobs::TrainDType::kF64;
  balance = jobs::BalanceLoss::kPerLayer;
  packing = jobs::WindowPacking::kBestFit;
  offload = jobs::OffloadPolicy::kNever;
  auto& [input, hidden] = restore;
  input = pipeline::InputRestore::kResend;
  hidden = pipeline::HiddenRestore::kRecompute;
  auto& [schedule, beta1, beta2, epsilon, weight_decay, clip_norm] = optimizer;
  auto& [shape, peak, final_fraction, warmup, total_steps, decay] = schedule;
  values.Fill(beta1, beta2, epsilon, weight_decay, clip_norm, peak, final_fraction, warmup, decay);
  shape = jobs::LrShape::kWsd;
  total_steps = steps;  // by the struct's rule
  auto& [mode, piece_bytes, granularity, expert_packing] = communication;
  mode = jobs::CommMode::kPreempt;  // jobs have no other, so it is not sent
  auto& [rule, chunks] = granularity;
  rule = jobs::ChunkRule::kFixed;
  chunks = 5;
  auto& [packing_rule, replicas] = expert_packing;
  packing_rule = jobs::PackingRule::kFixed;
  replicas = 2;
  auto& [pattern, frozen, rate, decay_of_rule] = parameters.emplace_back();
  auto& [rank, alpha, targets, dropout_of_lora] = lora;
  auto& [of_embedding, of_hidden, of_attention] = dropout;
  values.Fill(pattern, rate.emplace(), decay_of_rule.emplace(), rank, alpha, targets, dropout_of_lora,
              of_embedding.emplace(), of_hidden.emplace(), of_attention.emplace(), jitter.emplace());
  auto& [beta, smoothing] = dpo;
  values.Fill(beta, smoothing);
  frozen = true;
  auto& [every, keep_last, keep_every, keep_best] = checkpoints;
  auto& [patience, improvement] = early_stop;
  values.Fill(piece_bytes, every, keep_last, keep_every, keep_best, patience, improvement);
  return out;
}

TEST(LinkRoundTrip, Sampling) {
  const v1::SamplingPlan message = test::OverTheWire(ToProto(Sampling()));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  EXPECT_EQ(FromProto(message), Sampling());
}

TEST(LinkRoundTrip, APlan) {
  const v1::StepPlan message = test::OverTheWire(ToProto(Plan(), 1, absl::Milliseconds(1500)));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  batching::StepPlan head;
  absl::Duration limit;
  head.ranks = {{}, FromProto(message, &head, &limit)};
  batching::StepPlan sent = Plan();
  sent.ranks[0] = {};
  EXPECT_EQ(head, sent);
  EXPECT_EQ(limit, absl::Milliseconds(1500));
}

TEST(LinkRoundTrip, AResult) {
  const v1::StepResult message = test::OverTheWire(ToProto(Plan(), Result()));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  EXPECT_EQ(message.step(), Plan().step);
  EXPECT_EQ(message.group_epoch(), Plan().group_epoch);
  EXPECT_EQ(FromProto(message), Result());
}

TEST(LinkRoundTrip, ARegistration) {
  fleet::WorkerInfo info;
  auto& [incarnation, host, pid, role, device, isa, weights_hash, join_token, local_index, collective, metrics,
         architecture, dtype, quantization, kv_cache, vocab, context, layers, moe_layers, experts, top_k, eos,
         long_rope, transfer_rows, expert_bytes, row_bytes, adapters, budget, peer, also_trains, in_place, links] =
      info;
  auto& [percent, bytes] = budget.emplace();
  test::Distinct().Fill(percent, bytes, incarnation, host, pid, role, device, isa, weights_hash, join_token,
                        local_index, collective, metrics, architecture, dtype, quantization, kv_cache, vocab, context,
                        layers, moe_layers, experts, top_k, eos, long_rope, transfer_rows, expert_bytes, row_bytes,
                        adapters);
  const v1::Register message = test::OverTheWire(ToProto(info));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  EXPECT_EQ(message.protocol_version(), kProtocolVersion);
  EXPECT_EQ(FromProto(message), info);
}

TEST(LinkRoundTrip, Settings) {
  fleet::EngineSettings settings;
  auto& [block_size, kv_cache_bytes, seqs, tokens, model_len, yield_ms, placement, adds] = settings;
  auto& [mode, spare] = placement;
  test::Distinct().Fill(block_size, kv_cache_bytes, seqs, tokens, model_len, yield_ms, spare, adds);
  mode = placement::PlacementMode::kAgreed;
  const v1::EngineOptions message = test::OverTheWire(ToProto(settings));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  const absl::StatusOr<fleet::EngineSettings> arrived = FromProto(message);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, settings);
}

TEST(LinkRoundTrip, AAssignment) {
  fleet::RankAssignment assignment;
  auto& [epoch, rank, world, token, deadline, reach, encrypt] = assignment;
  test::Distinct().Fill(epoch, token, deadline, reach);
  encrypt = true;
  rank = 1;
  world = 2;
  const v1::JoinGroup message = test::OverTheWire(ToProto(assignment));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  const absl::StatusOr<fleet::RankAssignment> arrived = FromProto(message);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, assignment);
}

TEST(LinkRoundTrip, AReadyWorker) {
  fleet::GroupReady ready;
  auto& [epoch, blocks, in_place, links] = ready;
  auto& [start, rate, r_squared] = links;
  test::Distinct().Fill(epoch, blocks, start, rate);
  in_place = true;
  r_squared = 0.75;
  const v1::GroupReady message = test::OverTheWire(ToProto(ready));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  EXPECT_EQ(FromProto(message), ready);
  links = {};
  EXPECT_EQ(FromProto(ToProto(ready)), ready);
  // What cannot be was not measured.
  for (const auto& [bad_start, bad_rate] :
       {std::pair{-1.0, 1.0}, {0.0, HUGE_VAL}, {1e308, 1.0}, {0.0, 1e-305}, {0.0, NAN}}) {
    v1::GroupReady impossible = message;
    impossible.mutable_links()->set_start_seconds(bad_start);
    impossible.mutable_links()->set_bytes_per_second(bad_rate);
    EXPECT_FALSE(FromProto(impossible).links.measured());
  }
}

TEST(LinkRoundTrip, ProgressOfLoading) {
  fleet::LoadProgress progress;
  auto& [epoch, phase, done, total] = progress;
  test::Distinct().Fill(epoch, done, total);
  total += int64_t{1} << 40;
  for (const fleet::LoadPhase each :
       {fleet::LoadPhase::kWeights, fleet::LoadPhase::kExperts, fleet::LoadPhase::kGraphs}) {
    phase = each;
    const v1::LoadProgress message = test::OverTheWire(ToProto(progress));
    EXPECT_THAT(test::Unset(message), IsEmpty());
    EXPECT_EQ(FromProto(message), progress);
  }
  v1::LoadProgress other = ToProto(progress);
  EXPECT_EQ(other.phase(), "graphs");
  other.set_phase("a phase of days to come");
  EXPECT_EQ(FromProto(other).phase, fleet::LoadPhase::kWeights);
  other.clear_phase();
  EXPECT_EQ(FromProto(other).phase, fleet::LoadPhase::kWeights);
  other.set_done(total + 1);
  EXPECT_EQ(FromProto(other).done, total);
  other.set_total(-1);
  EXPECT_EQ(FromProto(other).total, 0);
  EXPECT_EQ(FromProto(other).done, 0);
}

TEST(LinkRoundTrip, AReport) {
  placement::ExpertReport report;
  auto& [predictor_stats, placements, origins, copied_bytes, copy_seconds] = report;
  test::Distinct().Fill(copied_bytes, copy_seconds);
  predictor_stats.resize(2);
  predictor_stats[0].batches = 1;
  predictor_stats[0].accuracy = 0.5;
  predictor_stats[0].distance = 0.25;
  auto& [layer, phase, ahead, estimator, batches, accuracy, distance, used] = predictor_stats[1];
  layer = 1;
  phase = popularity::Phase::kDecode;
  ahead = 2;
  estimator = popularity::LivePredictor::kProbe;
  batches = int64_t{1} << 33;
  accuracy = 1;
  distance = 0.125;
  used = true;
  placements = {{.num_experts = 4, .slots = {{0, 1}, {2, 3, 0}}},
                {.num_experts = 4, .slots = {{0, placement::kEmptySlot}, {1, 2, 3}}}};
  origins.assign(2, std::vector<placement::SlotOrigin>(5, placement::SlotOrigin::kStart));
  origins[0][4] = placement::SlotOrigin::kGate;
  origins[1][2] = placement::SlotOrigin::kEstimate;
  const v1::ExpertReport message = test::OverTheWire(ToProto(report, 9));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  EXPECT_EQ(message.group_epoch(), 9);
  const absl::StatusOr<placement::ExpertReport> arrived = FromProto(message, 2, 4);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, report);
}

TEST(LinkRoundTrip, ASpec) {
  const v1::JobSpec message = test::OverTheWire(ToProto(Spec()));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  const auto error = [](const SpecProblem& problem) { return absl::InternalError(problem.text); };
  const absl::StatusOr<jobs::JobSpec> arrived = FromProto(message, {.name = "test", .error = error});
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, Spec());
}

TEST(LinkRoundTrip, AnAttempt) {
  jobs::TrainingAssignment assignment;
  auto& [epoch, attempt, job_id, spec, data, evaluation, rank, world, token, deadline, reach, encrypt, origin] =
      assignment;
  test::Distinct().Fill(epoch, attempt, token, deadline, reach);
  encrypt = true;
  job_id = "job-1";
  spec.base_checkpoint = "base";
  spec.datasets = {"a.bin"};
  spec.steps = spec.optimizer.schedule.total_steps = 10;
  spec.sequence_length = 8;
  spec.batch_sequences = 4;
  data = {{.of_job = true, .name = "a.bin"}, {.of_job = false, .name = "b.bin"}};
  spec.evaluation = {"c.bin", "d.bin"};
  spec.evaluation_names = {"c", "d"};
  evaluation = {{.of_job = false, .name = "d.bin", .set = 1}};
  rank = 1;
  world = 2;
  origin = {.job = "job-0", .step = 5, .attempts = 3, .other_data = true, .skipped_sequences = 12};
  const v1::StartTraining message = test::OverTheWire(ToProto(assignment));
  for (const std::string& name : test::Unset(message)) {
    EXPECT_TRUE(name.rfind("spec.", 0) == 0 || name == "data.set") << name << ", which ASpec has not";
  }
  const absl::StatusOr<jobs::TrainingAssignment> arrived = FromProto(message);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, assignment);
}

TEST(LinkRoundTrip, Progress) {
  jobs::TrainProgress progress;
  auto& [step, loss, balance, z, rate, norm, tokens, speed, seconds, dropped, dead, packing, chunks, padding,
         total_steps, skipped, num_skipped, preferences] = progress;
  auto& [total, forward, backward, experts, all_to_all, all_reduce, optimizer, data] = seconds;
  test::Distinct().Fill(step, loss, balance, z, rate, norm, tokens, speed, dropped, dead, packing, chunks, padding,
                        total_steps, skipped, num_skipped, total, forward, backward, experts, all_to_all, all_reduce,
                        optimizer, data);
  auto& [margin, accuracy, pairs] = preferences.emplace();
  test::Distinct().Fill(margin, accuracy, pairs);
  const v1::TrainProgress message = test::OverTheWire(ToProto(progress));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  EXPECT_EQ(FromProto(message), progress);
}

TEST(LinkRoundTrip, WhatTrainingHasMade) {
  jobs::EvaluationResult result;
  auto& [step, loss, tokens, sets, preferences] = result;
  auto& [name, set_loss, set_tokens, set_preferences] = sets.emplace_back();
  auto& [margin, accuracy, pairs] = preferences.emplace();
  auto& [set_margin, set_accuracy, set_pairs] = set_preferences.emplace();
  test::Distinct().Fill(step, loss, tokens, name, set_loss, set_tokens, margin, accuracy, pairs, set_margin,
                        set_accuracy, set_pairs);
  const v1::EvaluationResult evaluated = test::OverTheWire(ToProto(result));
  EXPECT_THAT(test::Unset(evaluated), IsEmpty());
  EXPECT_EQ(FromProto(evaluated), result);
  const jobs::EvaluationReport report = {.result = result, .best_step = 7, .best_loss = 0.25};
  const v1::TrainingEvaluated reported = test::OverTheWire(ToProto(report, 9));
  EXPECT_THAT(test::Unset(reported), IsEmpty());
  EXPECT_EQ(reported.epoch(), 9);
  EXPECT_EQ(FromProto(reported), report);
  jobs::SavedCheckpoint checkpoint;
  auto& [saved_step, folder, bytes, seconds, unix_ms] = checkpoint;
  test::Distinct().Fill(saved_step, folder, bytes, seconds, unix_ms);
  const v1::SavedCheckpoint saved = test::OverTheWire(ToProto(checkpoint));
  EXPECT_THAT(test::Unset(saved), IsEmpty());
  EXPECT_EQ(FromProto(saved), checkpoint);
}

TEST(LinkRoundTrip, HowTrainingEnds) {
  for (const jobs::TrainOutcome outcome : {jobs::TrainOutcome::kFinished, jobs::TrainOutcome::kStopped}) {
    EXPECT_EQ(FromProto(test::OverTheWire(ToProto(jobs::TrainEnd{outcome, absl::OkStatus()}, 3))),
              (jobs::TrainEnd{outcome, absl::OkStatus()}));
  }
  const jobs::TrainEnd early = {jobs::TrainOutcome::kFinished, absl::OkStatus(), "stopped early at step 7"};
  EXPECT_EQ(FromProto(test::OverTheWire(ToProto(early, 3))), early);
  for (const jobs::TrainOutcome outcome :
       {jobs::TrainOutcome::kLost, jobs::TrainOutcome::kFailed, jobs::TrainOutcome::kBlocked}) {
    const jobs::TrainEnd end = {outcome, absl::DataLossError("no number")};
    const v1::TrainingEnded message = test::OverTheWire(ToProto(end, 3));
    EXPECT_THAT(test::Unset(message), IsEmpty());
    EXPECT_EQ(message.epoch(), 3);
    EXPECT_EQ(FromProto(message), end);
  }
  v1::TrainingEnded unknown;
  EXPECT_EQ(FromProto(unknown).outcome, jobs::TrainOutcome::kLost);
  EXPECT_EQ(FromProto(unknown).status.code(), absl::StatusCode::kUnknown);
  unknown.set_outcome(static_cast<v1::TrainingOutcome>(77));
  EXPECT_EQ(FromProto(unknown).outcome, jobs::TrainOutcome::kLost);
  for (const jobs::StopKind kind : {jobs::StopKind::kSave, jobs::StopKind::kNow})
    EXPECT_EQ(*FromProto(ToProto(kind)), kind);
}

TEST(LinkRoundTrip, MasksOfAStep) {
  const v1::StepMasks message = test::OverTheWire(ToProto(Masks(), 1));
  EXPECT_THAT(test::Unset(message), IsEmpty());
  batching::StepMasks head;
  EXPECT_EQ(FromProto(message, &head), Masks().ranks[1]);
  EXPECT_EQ(head.step, Masks().step);
  EXPECT_EQ(head.group_epoch, Masks().group_epoch);
}

// Checks the check: a field that is unset is named.
TEST(LinkRoundTrip, WhatIsUnsetIsNamed) {
  v1::StepPlan message = ToProto(Plan(), 1, absl::Seconds(1));
  message.clear_micro_batches();
  message.mutable_items(0)->mutable_init()->mutable_sampling()->clear_top_p();
  EXPECT_THAT(test::Unset(message), testing::UnorderedElementsAre("micro_batches", "items.init.sampling.top_p"));
}

}  // namespace
}  // namespace switchyard::link
