// The seam between policy and tensors: what the server asks of the workers in one step, and what they answer.
//
//   Scheduler::Plan → StepPlan → every rank executes → StepResult → Scheduler::Commit
//   Scheduler::NextMasks → StepMasks, which ranks await before they sample
// Plain data, no proto types; both print (DebugString).  A plan is a delta against the slots that a rank holds: a slot
// keeps a sequence's tokens, block table and sampling state between steps, so a decode item is a few words.  After an
// epoch change every slot is empty and everything is sent again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/grammar/token_mask.h"
#include "scheduler/placement/layer_costs.h"

namespace switchyard::batching {

// A rank's place for one running sequence: 0 <= slot < max_num_seqs of the rank.
using SlotId = int32_t;
// A block of the rank's paged KV cache: 0 <= block < the rank's num_blocks.
using BlockId = int32_t;

// How the next token of a sequence is chosen.  Filled in completely by the server (no "unset" here).
struct SamplingParams {
  double temperature = 1.0;  // 0 = greedy: the largest logit, ties to the smaller id
  double top_p = 1.0;        // (0, 1]
  int32_t top_k = 0;         // 0 = all
  double min_p = 0.0;        // [0, 1]
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;                    // > 0; over prompt and output, as HF does
  std::vector<std::pair<int32_t, float>> logit_bias;  // (token id, added to its logit)
  uint64_t seed = 0;
  uint32_t choice = 0;     // the generator is keyed by (seed, choice, index of the output token)
  int32_t min_tokens = 0;  // before this many output tokens the tokens of `stop_ids` cannot be chosen
  std::vector<int32_t> stop_ids;
  int32_t num_logprobs = -1;         // of each output token: -1 none, 0 the chosen one, k also the k most likely
  int32_t num_prompt_logprobs = -1;  // the same for each prompt token but the first
  bool constrained = false;          // each token comes from a mask of its own (StepItem::masked)
  int32_t expert_paths_from = -1;    // the experts of every row at a position from here on are reported; -1 = none
  bool operator==(const SamplingParams& other) const = default;
};

// Whether a choice after num_output tokens needs its logits and these params alone: no history, no forced length, no
// mask, no logprobs, no expert paths.  Devices choose such tokens themselves, without asking the host.
bool IsPlainSampling(const SamplingParams& params, int64_t num_output);

// First item of a sequence on this rank (or after preemption: prompt then holds the emitted tokens, too).
struct SlotInit {
  std::vector<int32_t> tokens;    // prompt and, after a preemption, the tokens emitted so far
  int32_t num_prompt_tokens = 0;  // of `tokens`, how many are the client's prompt (penalties, index of outputs)
  SamplingParams sampling;
  int32_t adapter = 0;  // low-rank adapter of the sequence's rows, from 1, in the order of --adapters; 0 = none
  bool operator==(const SlotInit& other) const = default;
};

// The part of one sequence in this step: queries at positions [start_pos, start_pos + num_query).  Their tokens come
// from the slot (its prompt, or what was sampled last in it), never from the plan.
struct StepItem {
  SlotId slot = 0;
  int32_t start_pos = 0;  // also the number of keys already in the cache
  int32_t num_query = 0;
  std::optional<SlotInit> init;     // (re)fills the slot first
  std::vector<BlockId> new_blocks;  // appended to the slot's block table
  bool sample = false;              // the last query row is sampled; its token is appended to the slot
  bool masked = false;              // under a mask that follows (StepMasks), as the sequence is constrained
  bool operator==(const StepItem& other) const = default;
};

// The part of one rank in this step.
struct RankPlan {
  std::vector<SlotId> freed_slots;  // emptied first
  std::vector<StepItem> items;      // then run, in this order; rows of item i precede those of item i+1

  int32_t NumRows() const;
  bool operator==(const RankPlan& other) const = default;
};

// Rank `to` computes `rows` of rank `from`'s rows, all but their attention: row_transfers.h.
struct RowTransfer {
  int32_t from = 0;
  int32_t to = 0;
  int32_t rows = 0;
  bool operator==(const RowTransfer& other) const = default;
};

// How rows are exchanged: exact sizes from counts on the host; or sizes fixed by the most rows of a rank, for a step of
// nothing but plain decodes on all ranks (IsPlainSampling), which devices record and replay.
inline constexpr int32_t kExactExchange = 0;
inline constexpr int32_t kDecodeExchange = 1;

// One step of the whole group.  Every rank gets the head and its own RankPlan.
struct StepPlan {
  int64_t step = 0;                           // 1, 2, 3 … within an epoch of the group; 0 = a train slice alone
  int64_t group_epoch = 0;                    // a plan of another epoch is refused
  int32_t exchange_version = kExactExchange;  // how rows travel to experts: agreed, as collectives depend on it
  int32_t micro_batches = 1;                  // chunks that each rank cuts its rows into; agreed by all
  std::vector<RowTransfer> transfers;         // the last rows of `from`, in this order; no rank gives away and borrows
  std::vector<int32_t> rank_rows;             // [R] rows that each rank computes, after transfers; empty: not known
  // False: rows go to the ranks that are their experts' homes.  True: layers with replicas decide, after their gates,
  // where rows go; where all experts are in place each rank computes its own rows.
  bool decides = true;
  placement::LayerCosts layer_costs;  // the times that its layers' decisions compare
  // How long workers that also train may, at most until the next plan.  Such a plan has no step and no result.
  int32_t train_slice_ms = 0;
  std::vector<RankPlan> ranks;  // [R]

  int32_t most_rows() const;  // of rank_rows
  std::string DebugString() const;
  bool operator==(const StepPlan& other) const = default;
};

// What one item of a step may sample.
struct ItemMask {
  int32_t item = 0;         // of the rank's plan, a masked one
  grammar::TokenMask mask;  // empty: the sequence has ended meanwhile, so any token will do and is dropped
  bool operator==(const ItemMask& other) const = default;
};

struct RankMasks {
  std::vector<ItemMask> items;  // one for each masked item, in order
  bool operator==(const RankMasks& other) const = default;
};

// The masks of a step.  They follow from the tokens of the step before, so they are sent after the plan, once that
// one's result is there: while ranks compute the step, which need them when they sample.  Those of a rank without
// masked items are not sent.
struct StepMasks {
  int64_t step = 0;
  int64_t group_epoch = 0;
  std::vector<RankMasks> ranks;  // [R]
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // natural logarithm, of the distribution before temperature and filters
  int32_t rank = 0;   // 1 = the most likely
  bool operator==(const TokenLogprob& other) const = default;
};

// Logprobs of one position: the token that stands there, and the most likely ones in falling order.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
  bool operator==(const PositionLogprobs& other) const = default;
};

enum class ItemStatus : uint8_t { kOk, kNonFinite };  // kNonFinite: a logit was NaN or Inf; the sequence must end

struct ItemResult {
  ItemStatus status = ItemStatus::kOk;
  std::vector<int32_t> tokens;                    // [0..n): what was sampled, in order
  std::vector<PositionLogprobs> logprobs;         // one per token, if asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // of positions start_pos+1 … start_pos+num_query that are prompt
  std::vector<int16_t> expert_paths;  // [rows, L, K] of those rows that expert_paths_from asks for; L = MoE layers
  bool operator==(const ItemResult& other) const = default;
};

struct StepTimings {
  double total_seconds = 0;
  double attention_seconds = 0;
  double expert_seconds = 0;
  double routed_seconds = 0;      // of those, without the shared expert; 0 = not known
  double exchange_seconds = 0;    // waiting included
  double head_seconds = 0;        // lm_head and sampling
  double mask_seconds = 0;        // waiting for masks; in no other figure
  double gather_seconds = 0;      // of the exchanges, the gather of what ranks place experts from
  double decide_seconds = 0;      // that layers waited for that decision, beside the gather
  double decide_cpu_seconds = 0;  // of the step's thread, for it; stays on the worker
  bool operator==(const StepTimings& other) const = default;
};

struct RankResult {
  std::vector<ItemResult> items;              // as RankPlan::items
  std::vector<int64_t> expert_counts;         // [MoE layers * E] choices of the rows that this rank computed, by expert
  std::vector<int64_t> decode_expert_counts;  // of those, the decoded rows' (the others are of prompts); empty = none
  int64_t rows = 0;                           // rows that this rank computed, borrowed ones among them
  int64_t rows_sent = 0;                      // expert rows sent to other ranks, summed over layers
  int64_t rows_received = 0;                  // expert rows computed here for other ranks, summed over layers
  int64_t expert_rows = 0;                    // expert rows computed here in all, summed over layers
  std::vector<int64_t> layer_rows;  // [MoE layers] of those, each layer's; zeros or none = the host does not know
  std::vector<double>
      layer_seconds;  // [MoE layers] in routed experts, waits for their copies included, for SY_DUMP_STEP; likewise
  int64_t experts_read = 0;       // that got rows here, summed over layers; 0 = the host does not know
  int64_t fine_tuned_layers = 0;  // whose experts moved after their gate; the same on all ranks
  uint64_t ledger_hash = 0;       // rolling hash of the collectives launched: equal on all ranks
  StepTimings timings;
  bool operator==(const RankResult& other) const = default;
};

struct StepResult {
  int64_t step = 0;
  int64_t group_epoch = 0;
  std::vector<RankResult> ranks;  // [R]

  std::string DebugString() const;
};

}  // namespace switchyard::batching
