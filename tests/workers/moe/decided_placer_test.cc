// Groups of ranks whose layers go where decisions say: the bits of one rank with all experts in tables, in every mode,
// over ranks, delays and stages of the slow loop; that ranks agree; and that the field is named where they do not.
#include "workers/moe/decided_placer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/moe/moe_test_model.h"
#include "workers/moe/decision_message.h"
#include "workers/moe/expert_checksum.h"
#include "workers/moe/layer_forecaster.h"
#include "workers/moe/placed_experts.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

using test::Backend;
using test::MoeShape;
using test::MoeTestModel;
using testing::HasSubstr;

constexpr int kLayers = 3, kExperts = 12, kTopK = 2, kSpare = 2;
constexpr int kMoreResidents = 2;  // than at the start, that stages may give a rank
constexpr int64_t kRows = 24, kSteps = 8;

// Passes all on, each launch late by something random; may change a bit of what one gather brings.
class UnsteadyCommunicator : public Communicator {
 public:
  struct Faults {
    bool delays = false;
    int64_t corrupt_gather = -1;  // which of this rank's gathers
    int64_t corrupt_byte = 0;     // of rank 0's message
  };
  UnsteadyCommunicator(Communicator* inner, const Faults& faults)
      : Communicator(inner->group(), MessagePool::Create()), inner_(inner), faults_(faults), random_(inner->rank()) {}

  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  WorkOr StartExchange(Exchange exchange) override {
    if (faults_.delays) absl::SleepFor(absl::Microseconds(random_() % 200));
    const bool corrupt = exchange.key.op == CommOp::kAllGather && gathers_++ == faults_.corrupt_gather;
    ASSIGN_OR_RETURN(std::unique_ptr<Work> work, inner_->StartExchange(std::move(exchange)));
    if (!corrupt) return work;
    return std::make_unique<CorruptWork>(std::move(work), faults_.corrupt_byte);
  }

 private:
  class CorruptWork : public Work {
   public:
    CorruptWork(std::unique_ptr<Work> inner, int64_t byte) : inner_(std::move(inner)), byte_(byte) {}
    absl::Status Wait() override {
      RETURN_IF_ERROR(inner_->Wait());
      received_ = std::move(inner_->received());
      received_[0].payload()[byte_] ^= 1;
      return absl::OkStatus();
    }

   private:
    const std::unique_ptr<Work> inner_;
    const int64_t byte_;
  };

  Communicator* const inner_;
  const Faults faults_;
  std::mt19937 random_;
  int64_t gathers_ = 0;
};

// Says of the next layer what this one's rows chose, with some of it moved elsewhere.
class FakeForecaster : public LayerForecaster {
 public:
  absl::StatusOr<absl::Span<const LayerEstimate>> Begin(const ForecastPass&) override {
    return absl::Span<const LayerEstimate>();
  }
  absl::StatusOr<absl::Span<const LayerEstimate>> OnGate(const GatedRows& rows) override {
    popularity_.assign(kExperts, 0);
    const int32_t* const idx = rows.topk_idx.empty() ? nullptr : rows.topk_idx.data<int32_t>();
    for (int64_t i = 0; i < rows.topk_idx.NumElements(); ++i) {
      popularity_[random_() % 4 == 0 ? random_() % kExperts : static_cast<size_t>(idx[i])] += kRow;
    }
    told_ = {{(rows.moe_layer + 1) % kLayers, popularity_}};
    return absl::MakeConstSpan(told_);
  }

 private:
  std::mt19937 random_{7};
  Popularity popularity_;
  std::vector<LayerEstimate> told_;
};

struct StageAt {
  int64_t prepared = 0, committed = 0;  // steps; committed < 0: dropped before the next is prepared
  ResidencyStage stage;
};

struct GroupRun {
  Backend backend = Backend::kLocal;
  PlacementMode mode = PlacementMode::kAgreed;
  std::vector<int64_t> rank_rows = {kRows};
  bool forecasts = true;
  bool delays = false;
  int micro_batches = 1;
  std::vector<StageAt> stages = {};
  UnsteadyCommunicator::Faults faults = {};  // of the last rank
};

struct GroupResult {
  std::vector<absl::Status> statuses;  // [R]
  std::string residual;
  std::vector<MoeStats> stats;                            // [R]
  std::vector<RankSlotsCounters> counters;                // [R]
  std::vector<int64_t> epochs;                            // [R]
  std::vector<std::vector<Placement>> placements;         // [R][L] at the end
  std::vector<std::array<int, kNumSlotOrigins>> origins;  // [R] experts in slots at the end, by who put them there
};

class Group {
 public:
  explicit Group(DType dtype = DType::kBf16) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      models_.push_back(std::make_unique<MoeTestModel>(
          MoeShape{.num_experts = kExperts, .top_k = kTopK, .shared_ffn = 16, .dtype = dtype}, layer + 1));
      if (layer == 1) models_.back()->FavourExpert(7);
      packed_.push_back(models_.back()->PackExperts());
    }
  }

  GroupResult Run(const GroupRun& run) const {
    const auto world = static_cast<int>(run.rank_rows.size());
    GroupResult result;
    const Tensor residual = models_[0]->RandomResidual(kRows, 99);
    result.residual.assign(static_cast<const char*>(residual.view().raw()), static_cast<size_t>(residual.bytes()));
    result.stats.resize(world);
    result.counters.resize(world);
    result.epochs.resize(world);
    result.placements.resize(world);
    result.origins.resize(world);
    auto ranks = test::MakeGroup(run.backend, world);
    result.statuses = test::RunRanks(&ranks, [&](Communicator* comm) {
      UnsteadyCommunicator::Faults faults = {.delays = run.delays};
      if (comm->rank() == world - 1 && run.faults.corrupt_gather >= 0) faults = run.faults;
      UnsteadyCommunicator unsteady(comm, faults);
      return RunRank(run, &unsteady, &result);
    });
    return result;
  }

  // What every run has to give.
  std::string Expected() const {
    GroupRun alone;
    alone.mode = PlacementMode::kStatic;
    const GroupResult result = Run(alone);
    EXPECT_TRUE(result.statuses[0].ok()) << result.statuses[0];
    return result.residual;
  }

 private:
  absl::StatusOr<std::unique_ptr<PlacedExperts>> MakeExperts(test::CopyScript* copies, int num_slots) const {
    PlacedExpertsOptions options;
    options.num_layers = kLayers;
    options.num_experts = kExperts;
    options.num_slots = num_slots;
    options.expert = models_[0]->packed();
    options.chunk_bytes = options.expert.bytes / 4;
    options.source = [this, bytes = options.expert.bytes](int layer, int expert) {
      return packed_[static_cast<size_t>(layer)].data() + expert * bytes;
    };
    options.checksum = [source = options.source, bytes = options.expert.bytes](int layer, int expert) {
      return ChecksumOf(source(layer, expert), bytes);
    };
    return PlacedExperts::Create(options, std::make_unique<test::FakeCopier>(copies));
  }

  static absl::Status AtStep(const GroupRun& run, int64_t step, int64_t* epoch, DecidedPlacer* placer) {
    int64_t number = 0;
    for (const StageAt& at : run.stages) {
      ++number;
      if (step == at.prepared) RETURN_IF_ERROR(placer->Prepare(number, CheapCopies(), at.stage));
      if (step == -at.committed) RETURN_IF_ERROR(placer->Drop(number));
      if (step == at.committed + 1) RETURN_IF_ERROR(placer->Release(number));
      if (step != at.committed) continue;
      for (const absl::Time end = test::Soon();;) {
        ASSIGN_OR_RETURN(const bool ready, placer->Ready());
        if (ready) break;
        if (absl::Now() > end) return absl::DeadlineExceededError("a stage is not ready");
        absl::SleepFor(absl::Milliseconds(1));
      }
      *epoch = number;
    }
    return placer->BeginStep(step, *epoch);
  }
  static MoveCosts CheapCopies() { return {.copy_ps = 1, .row_ps = 1000, .layer_ps = 1000}; }

  absl::Status RunRank(const GroupRun& run, Communicator* comm, GroupResult* result) const {
    const int rank = comm->rank(), world = comm->world();
    const auto place = static_cast<size_t>(rank);
    ThreadPool pool(1, false);
    const Stream stream = Stream::OnCpu(&pool);
    test::CopyScript copies;
    if (run.delays) copies.Delay(static_cast<uint32_t>(rank), absl::Microseconds(400));
    const Placement residents = ContiguousPlacement(kExperts, world, run.mode == PlacementMode::kStatic ? 0 : kSpare);
    ASSIGN_OR_RETURN(auto experts, MakeExperts(&copies, kLayers * static_cast<int>(residents.slots[place].size()) +
                                                            kMoreResidents + 1));
    DecidedPlacerOptions options;
    options.shape = {.mode = run.mode,
                     .top_k = kTopK,
                     .residents = std::vector<Placement>(kLayers, residents),
                     .costs = CheapCopies()};
    options.rank = rank;
    options.experts = experts.get();
    ASSIGN_OR_RETURN(auto placer, DecidedPlacer::Create(std::move(options)));
    RETURN_IF_ERROR(experts->Fill(placer->ExpertsHere(), test::Soon(), [](int64_t, int64_t) { return true; }));
    const int64_t begin = std::accumulate(run.rank_rows.begin(), run.rank_rows.begin() + rank, int64_t{0});
    const int64_t rows = run.rank_rows[place], width = models_[0]->shape().hidden;
    const DType acc = AccDType(models_[0]->shape().dtype);
    const TensorView residual(result->residual.data() + begin * width * DTypeBytes(acc), acc, {rows, width});
    const ExpertLayout layout = ExpertLayout::Contiguous(kExperts, world);
    const MoeSchedule schedule = BuildExpertParallel({.micro_batches = run.micro_batches, .shared_expert = true});
    MoeExecutor executor;
    FakeForecaster forecaster;
    int64_t epoch = 0;
    for (int64_t step = 1; step <= kSteps; ++step) {
      RETURN_IF_ERROR(AtStep(run, step, &epoch, placer.get()));
      for (int layer = 0; layer < kLayers; ++layer) {
        const Tensor x = models_[0]->RandomRows(kRows, static_cast<uint32_t>(step * kLayers + layer));
        RETURN_IF_ERROR(executor.Run({.stream = &stream,
                                      .comm = comm,
                                      .layout = &layout,
                                      .schedule = &schedule,
                                      .deadline = test::Soon(),
                                      .stats = &result->stats[place],
                                      .placer = placer.get(),
                                      .forecaster = run.forecasts ? &forecaster : nullptr,
                                      .moe_layer = layer},
                                     models_[static_cast<size_t>(layer)]->LayerOf(experts.get()),
                                     x.view().Rows(begin, rows), residual));
      }
    }
    result->counters[place] = experts->counters();
    result->epochs[place] = placer->epoch();
    for (int layer = 0; layer < kLayers; ++layer) {
      const Placement& placement = result->placements[place].emplace_back(placer->placement(layer));
      for (int expert = 0; expert < kExperts; ++expert) {
        for (const int32_t device : placement.DevicesOf(expert)) {
          ++result->origins[place][static_cast<size_t>(placer->OriginOf(layer, device, expert))];
        }
      }
    }
    return comm->status();
  }

  std::vector<std::unique_ptr<MoeTestModel>> models_;  // [L]
  std::vector<std::vector<char>> packed_;              // [L]
};

struct Case {
  PlacementMode mode;
  int world;
  bool delays;
  Backend backend;
  int micro_batches;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const PlacementMode mode : {PlacementMode::kStatic, PlacementMode::kStaticSpare, PlacementMode::kCentral,
                                   PlacementMode::kAgreed, PlacementMode::kNoEstimate, PlacementMode::kNoFinetune}) {
    for (const int world : {1, 2, 4}) {
      for (const bool delays : {false, true}) cases.push_back({mode, world, delays, Backend::kLocal, 1 + delays});
    }
    cases.push_back({mode, 3, true, Backend::kGloo, 1});
  }
  return cases;
}

std::vector<int64_t> RowsOf(int world) {
  if (world == 1) return {kRows};
  if (world == 2) return {17, 7};
  return world == 3 ? std::vector<int64_t>{0, 20, 4} : std::vector<int64_t>{9, 0, 11, 4};
}

class DecidedPlacerTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Modes, DecidedPlacerTest, testing::ValuesIn(Cases()), [](const auto& i) {
  std::string name = absl::StrCat(NameOf(i.param.mode), "_", i.param.world, "ranks_",
                                  test::BackendName(i.param.backend), i.param.delays ? "_delays" : "");
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
});

TEST_P(DecidedPlacerTest, TheBitsOfOneRank) {
  const Case& c = GetParam();
  const Group group;
  const GroupResult result = group.Run({.backend = c.backend,
                                        .mode = c.mode,
                                        .rank_rows = RowsOf(c.world),
                                        .delays = c.delays,
                                        .micro_batches = c.micro_batches});
  for (const absl::Status& status : result.statuses) ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(result.residual == group.Expected());
  int64_t copies = 0, computed = 0;
  for (size_t rank = 0; rank < result.statuses.size(); ++rank) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const Placement& placement = result.placements[rank][static_cast<size_t>(layer)];
      EXPECT_TRUE(CheckPlacement(placement).ok()) << placement.ToString();
      EXPECT_EQ(placement, result.placements[0][static_cast<size_t>(layer)]);
    }
    copies += result.counters[rank].copies[static_cast<size_t>(CopyReason::kDemand)] +
              result.counters[rank].copies[static_cast<size_t>(CopyReason::kPrefetch)];
    computed += result.stats[rank].expert_rows;
    EXPECT_EQ(result.counters[rank].failed, 0);
    EXPECT_GT(result.stats[rank].decide_seconds, 0);
  }
  EXPECT_EQ(computed, kSteps * kLayers * kRows * kTopK);
  // (With two ranks the spare slots that agreed begins with are enough.)
  const bool moves = c.mode != PlacementMode::kStatic && c.mode != PlacementMode::kStaticSpare &&
                     c.world > (c.mode == PlacementMode::kAgreed ? 2 : 1);
  EXPECT_EQ(copies > 0, moves) << copies;
  EXPECT_EQ(result.stats[0].fine_tuned_layers > 0, moves && c.mode != PlacementMode::kNoFinetune);
  const auto put_by = [&](SlotOrigin origin) { return result.origins[0][static_cast<size_t>(origin)]; };
  for (const auto& origins : result.origins) EXPECT_EQ(origins, result.origins[0]) << "ranks know alike";
  EXPECT_EQ(put_by(SlotOrigin::kEstimate) + put_by(SlotOrigin::kGate) > 0, moves);
  if (c.mode == PlacementMode::kNoEstimate) EXPECT_EQ(put_by(SlotOrigin::kEstimate), 0);
  if (c.mode == PlacementMode::kNoFinetune) EXPECT_EQ(put_by(SlotOrigin::kGate), 0);
}

// Stages are prepared, committed and dropped between steps, while the fast loop moves.
TEST(DecidedPlacerStageTest, ResidentsChangeUnderSteps) {
  const Group group;
  const std::string expected = group.Expected();
  const auto copy = [](int layer, int expert, int device) {
    return ResidencyMove{MoveKind::kCopy, layer, expert, device, 0};
  };
  const auto release = [](int layer, int expert, int device) {
    return ResidencyMove{MoveKind::kRelease, layer, expert, device, 0};
  };
  const std::vector<StageAt> stages = {
      {.prepared = 1, .committed = 2, .stage = {{copy(0, 11, 0), copy(1, 0, 3)}, {release(0, 11, 3)}}},
      {.prepared = 4, .committed = -5, .stage = {{copy(2, 11, 0)}, {}}},
      {.prepared = 5, .committed = 7, .stage = {{copy(0, 0, 3)}, {release(0, 0, 0)}}}};
  for (const PlacementMode mode : {PlacementMode::kAgreed, PlacementMode::kStaticSpare}) {
    for (const bool delays : {false, true}) {
      const GroupResult result = group.Run({.mode = mode, .rank_rows = RowsOf(4), .delays = delays, .stages = stages});
      for (const absl::Status& status : result.statuses) ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(result.residual == expected);
      for (int rank = 0; rank < 4; ++rank) {
        const std::vector<Placement>& placements = result.placements[static_cast<size_t>(rank)];
        EXPECT_EQ(result.epochs[static_cast<size_t>(rank)], 3);
        EXPECT_EQ(placements[0], result.placements[0][0]);
        EXPECT_TRUE(placements[0].Holds(0, 11));
        EXPECT_TRUE(placements[0].Holds(3, 0));
        EXPECT_EQ(placements[0].slots[0].size(), 5u);  // 1, 2, 11 and two transient ones
      }
      const auto stage_copies = [&](size_t rank) {
        return result.counters[rank].copies[static_cast<size_t>(CopyReason::kStage)];
      };
      EXPECT_LE(stage_copies(0), 2);  // none of what was transient there
      EXPECT_EQ(stage_copies(1) + stage_copies(2), 0);
    }
  }
}

TEST(DecidedPlacerStageTest, RefusesWhatComesOutOfTurn) {
  const Group group;
  const StageAt at = {.prepared = 1, .committed = 2, .stage = {{{MoveKind::kCopy, 0, 5, 0, 0}}, {}}};
  const auto refusal = [&](GroupRun run) {
    run.rank_rows = RowsOf(2);
    return group.Run(run).statuses[0];
  };
  StageAt resident = at;
  EXPECT_THAT(refusal({.stages = {resident}}).message(), HasSubstr("resident there already"));
  StageAt later = {.prepared = 1, .committed = 6, .stage = {{{MoveKind::kCopy, 0, 11, 0, 0}}, {}}};
  EXPECT_EQ(refusal({.stages = {later, later}}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refusal({.mode = PlacementMode::kCentral, .stages = {later}}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(DecidedPlacerStageTest, AStepOfAnUnknownEpochIsRefused) {
  auto placer = *DecidedPlacer::Create({.shape = {.epoch = 4, .residents = {ContiguousPlacement(4, 2, 0)}}});
  EXPECT_TRUE(placer->BeginStep(1, 4).ok());
  EXPECT_THAT(placer->BeginStep(2, 5).message(), HasSubstr("placement epoch 5; in use is 4, none is prepared"));
  EXPECT_TRUE(absl::IsFailedPrecondition(placer->Ready().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(placer->Release(5)));
  EXPECT_TRUE(placer->Drop(5).ok());
}

TEST(DecidedPlacerTest, WhatChangesAnswersOrLooksAheadIsForBenchmarks) {
  for (const PlacementMode mode : {PlacementMode::kOracle, PlacementMode::kIdeal}) {
    const absl::Status status =
        DecidedPlacer::Create({.shape = {.mode = mode, .residents = {ContiguousPlacement(4, 2, 1)}}}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("benchmarks"));
  }
}

// One bit of what the last rank hears of rank 0: that rank decides otherwise, and the next gather shows it.
TEST(DivergenceTest, TheFirstFieldThatDiffersIsNamed) {
  const Group group;
  constexpr int64_t kPopularityAt = 8 + 2 + DecisionGather::kMaxEstimates * (2 + 2);
  constexpr int64_t kCountsAt = kPopularityAt + DecisionGather::kMaxEstimates * kExperts * 2;
  struct Bit {
    int64_t byte;
    const char* field;
  };
  for (const Bit bit : {Bit{kPopularityAt + 4, "estimates: 0x"}, Bit{kCountsAt + 2 * 7, "counts: 0x"}}) {
    const GroupResult result =
        group.Run({.rank_rows = {24, 0, 0}, .faults = {.corrupt_gather = 4, .corrupt_byte = bit.byte}});
    int named = 0;
    for (const absl::Status& status : result.statuses) {
      EXPECT_FALSE(status.ok());
      if (!absl::IsInternal(status)) continue;
      ++named;
      EXPECT_THAT(status.message(), HasSubstr("ranks had decided differently"));
      EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(bit.field)));
      EXPECT_THAT(status.message(), HasSubstr("on rank 0"));
      EXPECT_THAT(status.message(), HasSubstr("on rank 2"));
    }
    EXPECT_GE(named, 1);
  }
}

TEST(DecisionMessageTest, SaysWhatItWasMadeFrom) {
  const std::vector<int32_t> rows = {9, 0, 3, 1, 4, 0, 0, 8};
  PolicyShape shape{.mode = PlacementMode::kCentral, .residents = {ContiguousPlacement(4, 2, 1)}};
  auto policy = *MakePlacementPolicy(shape);
  const Popularity popularity = {5 * kRow, 0, 0, kRow};
  const LayerEstimate estimate{.layer = 0, .popularity = popularity};
  const LayerDecision decision = policy->Decide({.layer = 0,
                                                 .counts = {.num_ranks = 2, .num_experts = 4, .rows = rows},
                                                 .estimates = absl::MakeConstSpan(&estimate, 1)});
  ASSERT_FALSE(decision.prefetch[0].changes.empty());
  const std::vector<int32_t> words = EncodeDecision(decision);
  const DecisionBounds bounds = {.num_layers = 1, .num_experts = 4, .num_ranks = 2};
  const auto heard = DecodeDecision(words, bounds);
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->split, decision.split);
  EXPECT_EQ(heard->split.loads(), decision.split.loads());
  EXPECT_EQ(heard->split.num_exchanged(), decision.split.num_exchanged());
  EXPECT_EQ(heard->prefetch[0].changes, decision.prefetch[0].changes);
  EXPECT_EQ(DescribeMismatch(DigestOfSaid(*heard), 0, DigestOfSaid(decision), 1), "");
  // Cut short anywhere, or with any word out of range, it is refused or says something else, and nothing is read
  // beyond.
  for (size_t length = 0; length < words.size(); ++length) {
    EXPECT_FALSE(DecodeDecision(absl::MakeConstSpan(words).first(length), bounds).ok()) << length;
  }
  for (size_t at = 0; at < words.size(); ++at) {
    std::vector<int32_t> broken = words;
    broken[at] ^= 1 << 30;
    const auto other = DecodeDecision(broken, bounds);
    EXPECT_FALSE(other.ok() && DigestOfSaid(*other) == DigestOfSaid(decision)) << at;
  }
}

}  // namespace
}  // namespace switchyard
