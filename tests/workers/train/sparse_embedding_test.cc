// The embedding's gradient as rows that ranks gather: what trains is what sums of the whole gradient train.
#include "workers/train/reduce/sparse_embedding.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/train/comm_modes.h"
#include "tests/workers/train/training_group.h"
#include "workers/comm/core/call_tag.h"
#include "workers/comm/local/local_communicator.h"

namespace switchyard::train {
namespace {

using Values = std::map<std::string, std::vector<double>>;

TEST(GathersEmbeddingTest, WhereAStepHasAtMostTheVocabularysTokens) {
  EXPECT_FALSE(GathersEmbedding(0, 256)) << "not known";
  EXPECT_TRUE(GathersEmbedding(1, 256));
  EXPECT_TRUE(GathersEmbedding(256, 256));
  EXPECT_FALSE(GathersEmbedding(257, 256));
  EXPECT_FALSE(GathersEmbedding(int64_t{1} << 40, 256));
}

constexpr int64_t kVocab = 11, kWidth = 3;

// Two micro-batches of a rank; some have no rows.
std::vector<TrainRows> TokensOf(int rank, int step) {
  std::vector<TrainRows> micro_batches(2, TrainRows{.length = 4});
  if (rank == step) return micro_batches;
  for (int i = 0; i < 4; ++i) {
    micro_batches[0].tokens.push_back(static_cast<int32_t>((rank + i * i + step) % kVocab));
  }
  if (step != 2) micro_batches[1].tokens = {10, 0, rank, 10};
  return micro_batches;
}

int64_t NumTokens(const std::vector<TrainRows>& micro_batches) {
  std::vector<int32_t> tokens;
  for (const TrainRows& rows : micro_batches) tokens.insert(tokens.end(), rows.tokens.begin(), rows.tokens.end());
  std::sort(tokens.begin(), tokens.end());
  return std::unique(tokens.begin(), tokens.end()) - tokens.begin();
}

// Of the gradient of a token's row; integers, so that no sum rounds.
double ValueOf(int rank, int64_t at, int64_t column) { return static_cast<double>(100 * rank + 10 * at + column + 1); }

template <class Elem>
absl::Status AddOnRank(comm::Communicator* comm) {
  std::vector<Elem> gradient(kVocab * kWidth);
  SparseEmbedding embedding(TensorView(gradient.data(), DTypeOf<Elem>::value, {kVocab, kWidth}), comm->rank(),
                            comm->world());
  for (int step = 0; step < 4; ++step) {
    std::fill(gradient.begin(), gradient.end(), Elem{7});  // other sums
    std::vector<Elem> expected = gradient;
    std::vector<int64_t> counts;
    for (int r = 0; r < comm->world(); ++r) {
      const std::vector<TrainRows> micro_batches = TokensOf(r, step);
      counts.push_back(NumTokens(micro_batches));
      int64_t at = 0;
      for (const TrainRows& rows : micro_batches) {
        for (const int32_t token : rows.tokens) {
          for (int64_t i = 0; i < kWidth; ++i) {
            expected[token * kWidth + i] += static_cast<Elem>(ValueOf(r, at, i));
          }
          ++at;
        }
      }
    }
    const std::vector<TrainRows> mine = TokensOf(comm->rank(), step);
    EXPECT_EQ(embedding.Begin(mine), counts[static_cast<size_t>(comm->rank())]);
    RETURN_IF_ERROR(embedding.SetCounts(counts));
    EXPECT_EQ(embedding.own().dim(0), counts[static_cast<size_t>(comm->rank())]);
    int64_t at = 0;
    for (const TrainRows& rows : mine) {
      for (const int32_t slot : embedding.SlotsOf(rows.tokens)) {
        for (int64_t i = 0; i < kWidth; ++i) {
          embedding.own().row<Elem>(slot)[i] += static_cast<Elem>(ValueOf(comm->rank(), at, i));
        }
        ++at;
      }
    }
    const comm::CommCall call = {.comm_class = comm::CommClass::kAllReduce, .deadline = test::Soon()};
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> tokens, comm::AllGatherParts(comm, call, embedding.tokens()));
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> rows, comm::AllGatherParts(comm, call, embedding.rows()));
    RETURN_IF_ERROR(tokens->Wait());
    RETURN_IF_ERROR(rows->Wait());
    RETURN_IF_ERROR(embedding.AddRows());
    EXPECT_EQ(gradient, expected) << "step " << step << " on rank " << comm->rank();
  }
  return absl::OkStatus();
}

TEST(SparseEmbeddingTest, AddsTheRowsOfAllRanks) {
  for (const int world : {2, 3, 4}) {
    test::ExpectRanksOk(test::Backend::kLocal, world, AddOnRank<double>);
    test::ExpectRanksOk(test::Backend::kOvertaking, world, AddOnRank<float>);
  }
}

TEST(SparseEmbeddingTest, ATokenOfAnotherRankOutsideTheVocabularyIsNamed) {
  std::vector<double> gradient(kVocab * kWidth);
  SparseEmbedding embedding(TensorView(gradient.data(), DType::kF64, {kVocab, kWidth}), 0, 2);
  const TrainRows rows = {.length = 3, .tokens = {3, 5, 3}};
  ASSERT_EQ(embedding.Begin({&rows, 1}), 2);
  const std::vector<int64_t> counts = {2, 1};
  ASSERT_TRUE(embedding.SetCounts(counts).ok());
  const TensorView& theirs = embedding.tokens()[1][0];
  std::fill_n(embedding.rows()[1][0].data<double>(), kWidth, 1.0);
  for (const int32_t token : {-1, 11, 1 << 30}) {
    theirs.data<int32_t>()[0] = token;
    EXPECT_EQ(embedding.AddRows(), absl::InternalError(absl::StrCat("sparse embedding: rank 1 has a row of token ",
                                                                    token, ", outside [0, 11)")));
  }
  for (const int32_t token : {0, 10}) {
    theirs.data<int32_t>()[0] = token;
    EXPECT_TRUE(embedding.AddRows().ok());
    EXPECT_EQ(gradient[static_cast<size_t>(token * kWidth)], 1);
  }
}

struct Outcome {
  std::vector<double> losses, norms;
  Values gradients, masters;
  bool operator==(const Outcome&) const = default;
};

// The first sequences; ranks behind them have no rows.
TrainRows First(const TrainRows& rows, int64_t sequences) {
  const auto cut = [&](std::vector<int32_t> from) {
    from.resize(static_cast<size_t>(sequences * rows.length));
    return from;
  };
  return {.length = rows.length, .tokens = cut(rows.tokens), .targets = cut(rows.targets)};
}

// One micro-batch, two, two of which one has a single sequence, a step without targets, and a single sequence.
std::vector<std::vector<TrainRows>> StepsOf(const TrainingGolden& golden) {
  const auto rows = [&](size_t i) { return RowsOfStep(golden, i); };
  TrainRows untrained = rows(5);
  std::fill(untrained.targets.begin(), untrained.targets.end(), -1);
  return {{rows(0)}, {rows(1), rows(2)}, {rows(3), First(rows(4), 1)}, {untrained}, {First(rows(6), 1)}};
}

Outcome Train(const TrainingGolden& golden, const TrainingGroupOptions& options) {
  TrainingGroup group(golden.dir, options);
  Outcome outcome;
  int packing = 1;
  for (const std::vector<TrainRows>& micro_batches : StepsOf(golden)) {
    if (options.trainer.communication.mode == jobs::CommMode::kFull && options.world != 3) {  // other groups of ranks
      for (const absl::Status& status : group.TryRepack(packing)) EXPECT_TRUE(status.ok()) << status;
      packing = std::min(2 * packing, options.world);
    }
    const StepReport report = group.Step(micro_batches, kLearningRate);
    outcome.losses.push_back(report.loss);
    outcome.norms.push_back(report.gradient_norm);
    outcome.losses.push_back(group.Evaluate(micro_batches).loss);
    group.ExpectReplicasAlike();
  }
  outcome.gradients = group.Gradients();
  outcome.masters = group.Masters();
  return outcome;
}

// Relative to the largest element of all parameters: the gradients of keys' biases are nothing but rounding.
double Distance(const Values& here, const Values& there) {
  EXPECT_EQ(here.size(), there.size());
  double largest = 0, apart = 0;
  for (const auto& [name, values] : there) {
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      apart = std::max(apart, std::abs(values[i] - here.at(name)[i]));
    }
  }
  return apart / largest;
}

void ExpectNear(const std::vector<double>& here, const std::vector<double>& there, double tolerance) {
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(here[i], there[i], tolerance * there[i]) << i;
}

constexpr const char* kUntied[] = {"olmoe-clip", "qwen2-shared"};
constexpr const char* kTied[] = {"qwen3-qknorm", "gpt2-top2"};  // the second has positions, too

// Groups whose ranks gather rows (step_tokens of trainers) beside groups that sum all of the gradient.
class SparseEmbeddingModesTest : public ::testing::TestWithParam<jobs::CommMode> {
 protected:
  // Small pieces, so that there are many; gradients are clipped, so that the norm's bits count.
  static TrainingGroupOptions OptionsIn(jobs::CommMode mode, int world, DType dtype, int64_t step_tokens) {
    TrainingGroupOptions options = {.dtype = dtype, .world = world};
    options.trainer.communication = {.mode = mode, .piece_bytes = 4096};
    options.trainer.optimizer.clip_norm = 0.5;
    options.trainer.step_tokens = step_tokens;
    return options;
  }
  TrainingGroupOptions Options(int world, DType dtype, int64_t step_tokens) const {
    return OptionsIn(GetParam(), world, dtype, step_tokens);
  }
  // The most that steps have.
  static int64_t StepTokens(const TrainingGolden& golden) { return 2 * golden.sequences * golden.length; }
};

INSTANTIATE_TEST_SUITE_P(Modes, SparseEmbeddingModesTest, ::testing::ValuesIn(AllCommModes()),
                         [](const auto& info) { return std::string(jobs::CommModeName(info.param)); });

// Each element of a gradient by itself is added in the order of the ranks, summed or gathered.
TEST_P(SparseEmbeddingModesTest, HasTheBitsOfSumsOfAGradientThatIsNotTied) {
  for (const char* name : kUntied) {
    const TrainingGolden golden = LoadTrainingGolden(name);
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBf16}) {
      for (const int world : {2, 3, 4}) {
        SCOPED_TRACE(absl::StrCat(name, " on ", world, ", ", DTypeName(dtype)));
        EXPECT_TRUE(Train(golden, Options(world, dtype, StepTokens(golden))) ==
                    Train(golden, Options(world, dtype, 0)));
      }
    }
  }
}

// Rows are added behind the sums of lm_head's part, which rounds otherwise.
TEST_P(SparseEmbeddingModesTest, IsNearSumsOfATiedGradient) {
  for (const char* name : kTied) {
    const TrainingGolden golden = LoadTrainingGolden(name);
    for (const int world : {2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat(name, " on ", world));
      const Outcome here = Train(golden, Options(world, DType::kF64, StepTokens(golden)));
      const Outcome whole = Train(golden, Options(world, DType::kF64, 0));
      ExpectNear(here.losses, whole.losses, 1e-10);
      ExpectNear(here.norms, whole.norms, 1e-10);
      EXPECT_LT(Distance(here.gradients, whole.gradients), 1e-10);
      EXPECT_LT(Distance(here.masters, whole.masters), 1e-10);
      const Outcome single = Train(golden, Options(world, DType::kF32, StepTokens(golden)));
      const Outcome single_whole = Train(golden, Options(world, DType::kF32, 0));
      ExpectNear(single.losses, single_whole.losses, 1e-5);
      ExpectNear(single.norms, single_whole.norms, 1e-4);
    }
  }
}

TEST_P(SparseEmbeddingModesTest, ModesHaveTheSameBits) {
  // Rows of an expert are added chunk by chunk; of a packed one, replica by replica.
  if (GetParam() == jobs::CommMode::kPipelining || GetParam() == jobs::CommMode::kFull) return;
  for (const char* name : {kUntied[1], kTied[0], kTied[1]}) {
    const TrainingGolden golden = LoadTrainingGolden(name);
    for (const DType dtype : {DType::kF64, DType::kF32}) {
      for (const int world : {2, 4}) {
        SCOPED_TRACE(absl::StrCat(name, " on ", world, ", ", DTypeName(dtype)));
        EXPECT_TRUE(Train(golden, Options(world, dtype, StepTokens(golden))) ==
                    Train(golden, OptionsIn(jobs::CommMode::kArLast, world, dtype, StepTokens(golden))));
      }
    }
  }
}

TEST_P(SparseEmbeddingModesTest, ShardedDenseStateHasTheSameBits) {
  for (const char* name : {kUntied[1], kTied[0]}) {
    const TrainingGolden golden = LoadTrainingGolden(name);
    for (const int world : {2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat(name, " on ", world));
      TrainingGroupOptions options = Options(world, DType::kF32, StepTokens(golden));
      const Outcome whole = Train(golden, options);
      options.zero = true;
      EXPECT_TRUE(Train(golden, options) == whole);
    }
  }
}

TEST_P(SparseEmbeddingModesTest, OverConnectionsToo) {
  const TrainingGolden golden = LoadTrainingGolden(kTied[0]);
  TrainingGroupOptions options = Options(3, DType::kF32, StepTokens(golden));
  const Outcome local = Train(golden, options);
  for (const test::Backend backend : {test::Backend::kSocket, test::Backend::kOvertaking}) {
    options.form = [&](int ranks) { return test::MakeGroup(backend, ranks); };
    EXPECT_TRUE(Train(golden, options) == local) << test::BackendName(backend);
  }
}

// A frozen embedding has no gradient, and a tied one's head is frozen with it.
TEST_P(SparseEmbeddingModesTest, AFrozenEmbeddingHasNoRows) {
  for (const char* name : {kUntied[1], kTied[0]}) {
    SCOPED_TRACE(name);
    const TrainingGolden golden = LoadTrainingGolden(name);
    TrainingGroupOptions options = Options(2, DType::kF32, StepTokens(golden));
    options.rules = {{.pattern = "*embed_tokens*", .frozen = true}};
    const Outcome here = Train(golden, options);
    EXPECT_EQ(here.gradients.count("model.embed_tokens.weight"), 0u);
    options.trainer.step_tokens = 0;
    EXPECT_TRUE(here == Train(golden, options));
  }
}

// Counts a rank's exchanges that fit.
class ExchangeCounter final : public comm::Communicator {
 public:
  using Fits = bool (*)(const comm::OpKey& key);
  ExchangeCounter(std::unique_ptr<comm::Communicator> inner, Fits fits, std::atomic<int>* count)
      : Communicator(inner->group(), comm::MessagePool::Create()),
        inner_(std::move(inner)),
        fits_(fits),
        count_(count) {}
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  comm::WorkOr StartExchange(Exchange exchange) override {
    if (fits_(exchange.key)) ++*count_;
    return inner_->StartExchange(std::move(exchange));
  }

 private:
  const std::unique_ptr<comm::Communicator> inner_;
  const Fits fits_;
  std::atomic<int>* const count_;
};

// Gathers among sums of gradients, which are exchanges of another kind where nothing is sharded.
bool IsGather(const comm::OpKey& key) {
  return key.comm_class == comm::CommClass::kAllReduce && key.op == comm::CommOp::kAllToAllV;
}

bool IsReplicaSum(const comm::OpKey& key) {
  return key.tag >= comm::NumberedTag(comm::CallUse::kReplicaSum, 0) &&
         key.tag < comm::NumberedTag(comm::CallUse::kGivenRows, 0);
}

// Of each rank.
std::vector<int> ExchangesOfAStep(const TrainingGolden& golden, TrainingGroupOptions options,
                                  ExchangeCounter::Fits fits) {
  std::vector<std::atomic<int>> counts(static_cast<size_t>(options.world));
  size_t ranks = 0;
  options.wrap = [&](std::unique_ptr<comm::Communicator> inner) {
    return std::make_unique<ExchangeCounter>(std::move(inner), fits, &counts[ranks++]);
  };
  TrainingGroup group(golden.dir, options);
  group.Step({RowsOfStep(golden, 0), RowsOfStep(golden, 1)}, kLearningRate);
  return std::vector<int>(counts.begin(), counts.end());
}

int GathersOfAStep(const TrainingGolden& golden, const TrainingGroupOptions& options) {
  const std::vector<int> gathers = ExchangesOfAStep(golden, options, IsGather);
  return std::accumulate(gathers.begin(), gathers.end(), 0);
}

// (Otherwise the tests above would compare a thing with itself.)
TEST_P(SparseEmbeddingModesTest, EachRankGathersTokensAndRowsOnceAStep) {
  for (const char* name : {kUntied[0], kTied[0]}) {
    SCOPED_TRACE(name);
    const TrainingGolden golden = LoadTrainingGolden(name);  // 256 tokens are its vocabulary
    for (const int64_t step_tokens : {int64_t{1}, StepTokens(golden), int64_t{256}}) {
      EXPECT_EQ(GathersOfAStep(golden, Options(2, DType::kF32, step_tokens)), 2 * 2) << step_tokens;
    }
    for (const int64_t step_tokens : {0, 257}) {
      EXPECT_EQ(GathersOfAStep(golden, Options(2, DType::kF32, step_tokens)), 0) << step_tokens;
    }
    EXPECT_EQ(GathersOfAStep(golden, Options(1, DType::kF32, StepTokens(golden))), 0) << "alone";
    TrainingGroupOptions frozen = Options(2, DType::kF32, StepTokens(golden));
    frozen.rules = {{.pattern = "*embed_tokens*", .frozen = true}};
    EXPECT_EQ(GathersOfAStep(golden, frozen), 0) << "frozen";
  }
}

// A rank with more experts has more sums of replicas, so gathers are numbered without them: six experts on a group's
// four ranks, and seven, with a tied embedding, on two.
TEST_P(SparseEmbeddingModesTest, GoesWithPackedExpertsThatRanksDoNotDivide) {
  if (GetParam() == jobs::CommMode::kFull) return;  // Train changes its packing
  for (const auto& [name, world] : {std::make_pair(kUntied[1], 8), std::make_pair(kTied[0], 4)}) {
    SCOPED_TRACE(name);
    const TrainingGolden golden = LoadTrainingGolden(name);
    TrainingGroupOptions options = Options(world, DType::kF64, StepTokens(golden));
    options.packing = 2;
    const std::vector<int> sums = ExchangesOfAStep(golden, options, IsReplicaSum);
    const int first = sums.front(), last = sums[sums.size() / 2 - 1];  // of the ranks of a group
    EXPECT_GT(last, 0);
    if (GetParam() != jobs::CommMode::kArLast) EXPECT_GT(first, last);  // there all are one bucket
    const Outcome here = Train(golden, options);
    options.trainer.step_tokens = 0;
    const Outcome whole = Train(golden, options);
    if (world == 8) EXPECT_TRUE(here == whole);
    ExpectNear(here.losses, whole.losses, 1e-10);
    ExpectNear(here.norms, whole.norms, 1e-10);
    EXPECT_LT(Distance(here.masters, whole.masters), 1e-10);
  }
}

}  // namespace
}  // namespace switchyard::train
