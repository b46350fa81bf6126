// Training of parts of a model: rules of parameters and low-rank adapters, also of experts, against PyTorch and PEFT
// (tests/golden/adapters/make.py), over ranks, and that the rest keeps its bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/train/adapter_golden.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/training_group.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/train/parameters/parameter_rules.h"

namespace switchyard::train {
namespace {

using Values = AdapterValues;

struct PartsGolden {
  TrainingGolden steps;  // only what concerns steps
  model::AdapterDesc adapters = {};
  Values first, last;  // by parameter
};

template <class Value>
std::vector<double> Numbers(const checkpoint::WeightsFile& file, const checkpoint::TensorEntry& entry) {
  std::vector<Value> values(static_cast<size_t>(entry.bytes) / sizeof(Value));
  SY_CHECK_OK(file.Read(entry.begin, entry.bytes, values.data()));
  return {values.begin(), values.end()};
}

PartsGolden Load(const std::string& name) {
  absl::StatusOr<ModelDir> dir = ModelDir::Open("tests/golden/adapters");
  SY_CHECK_OK(dir.status());
  auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, name + ".safetensors");
  SY_CHECK_OK(file.status());
  PartsGolden golden;
  golden.steps.dir = "tests/golden/models/" + name.substr(name.find('-') + 1);
  double alpha = 0;
  for (const auto& [tensor, entry] : (*file)->tensors()) {
    const std::vector<double> values = entry.dtype == "F64"   ? Numbers<double>(**file, entry)
                                       : entry.dtype == "F32" ? Numbers<float>(**file, entry)
                                                              : Numbers<int32_t>(**file, entry);
    absl::string_view key = tensor;
    if (absl::ConsumePrefix(&key, "first.")) golden.first[std::string(key)] = values;
    if (absl::ConsumePrefix(&key, "last.")) golden.last[std::string(key)] = values;
    if (tensor == "rank") golden.adapters.rank = static_cast<int64_t>(values[0]);
    if (tensor == "alpha") alpha = values[0];
    if (tensor == "steps.loss") golden.steps.step_loss = values;
    if (tensor == "steps.norm") golden.steps.step_norm = values;
    if (tensor == "targets") golden.adapters.targets = AdapterTargets(values);
    if (tensor != "steps.tokens") continue;
    golden.steps.sequences = entry.shape[1];
    golden.steps.length = entry.shape[2] - 1;
    const auto one = static_cast<size_t>(entry.shape[1] * entry.shape[2]);
    for (size_t i = 0; i < values.size(); i += one) {
      golden.steps.step_tokens.emplace_back(values.begin() + static_cast<int64_t>(i),
                                            values.begin() + static_cast<int64_t>(i + one));
    }
  }
  if (golden.adapters.rank == 0) return golden;
  golden.adapters.scale = alpha / static_cast<double>(golden.adapters.rank);
  const int64_t num_experts = model::ReadModelConfig(golden.steps.dir)->num_experts;
  for (Values* values : {&golden.first, &golden.last}) *values = SplitFused(*values, golden.adapters, num_experts);
  return golden;
}

// make.py's RULES.
std::vector<jobs::ParameterRule> Rules() {
  return {{.pattern = "model.embed_tokens.weight", .frozen = true},
          {.pattern = "*.self_attn.k_proj.*", .frozen = true},
          {.pattern = "*.experts.*", .frozen = true},
          {.pattern = "*.gate.weight", .rate = 0.1},
          {.pattern = "*.self_attn.*", .rate = 3, .weight_decay = 0.5},
          {.pattern = "*norm*", .rate = 0.5, .weight_decay = 0.05}};
}

TrainingGroupOptions OptionsOf(const PartsGolden& golden, DType dtype = DType::kF32, int world = 1) {
  TrainingGroupOptions options = {.dtype = dtype, .world = world};
  options.adapters = golden.adapters;
  if (golden.adapters.rank == 0) options.rules = Rules();
  return options;
}

// A group that begins as PEFT began.
std::unique_ptr<TrainingGroup> Begin(const PartsGolden& golden, const TrainingGroupOptions& options) {
  auto group = std::make_unique<TrainingGroup>(golden.steps.dir, options);
  if (golden.adapters.rank == 0) return group;
  Values values = group->Masters();
  for (auto& [name, value] : values) {
    if (absl::EndsWith(name, "lora_A.weight")) {
      EXPECT_EQ(value.size(), golden.first.at(name).size()) << name;
      value = golden.first.at(name);
    }
  }
  group->SetMasters(values);
  return group;
}

std::vector<StepReport> Train(const PartsGolden& golden, TrainingGroup* group, size_t steps = 20) {
  std::vector<StepReport> reports;
  for (size_t i = 0; i < steps; ++i) reports.push_back(group->Step({RowsOfStep(golden.steps, i)}, kLearningRate));
  return reports;
}

double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0, distance = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    distance = std::max(distance, std::abs(a[i] - b[i]));
  }
  return distance / largest;
}

class TrainedPartsTest : public ::testing::TestWithParam<std::string> {
 protected:
  const PartsGolden golden_ = Load(GetParam());
};

TEST_P(TrainedPartsTest, TwentyStepsArePyTorchs) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const std::unique_ptr<TrainingGroup> group = Begin(golden_, OptionsOf(golden_, dtype));
    const std::vector<StepReport> reports = Train(golden_, group.get());
    double worst = 0;
    for (size_t i = 0; i < reports.size(); ++i) {
      worst = std::max(worst, std::abs(reports[i].loss / golden_.steps.step_loss[i] - 1));
      EXPECT_NEAR(reports[i].loss, golden_.steps.step_loss[i], 1e-4 * golden_.steps.step_loss[i]) << "step " << i;
      EXPECT_NEAR(reports[i].gradient_norm, golden_.steps.step_norm[i], 1e-3 * golden_.steps.step_norm[i])
          << "step " << i;
    }
    RecordProperty(absl::StrCat("loss_distance_", DTypeName(dtype)), absl::StrCat(worst));
    const Values last = group->Masters();
    ASSERT_FALSE(golden_.last.empty());
    for (const auto& [name, values] : golden_.last) {
      ASSERT_EQ(last.count(name), 1u) << name;
      ASSERT_EQ(last.at(name).size(), values.size()) << name;
      EXPECT_LT(Distance(last.at(name), values), 2e-3) << name;
    }
  }
}

TEST_P(TrainedPartsTest, RanksGiveTheSameLosses) {
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF64, 1e-10), std::make_pair(DType::kF32, 1e-5)}) {
    const std::unique_ptr<TrainingGroup> one = Begin(golden_, OptionsOf(golden_, dtype));
    const std::vector<StepReport> alone = Train(golden_, one.get(), 6);
    for (const int world : {2, 4}) {
      const std::unique_ptr<TrainingGroup> group = Begin(golden_, OptionsOf(golden_, dtype, world));
      const std::vector<StepReport> together = Train(golden_, group.get(), 6);
      group->ExpectReplicasAlike();
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_NEAR(together[i].loss, alone[i].loss, tolerance * alone[i].loss) << world << " ranks, step " << i;
        EXPECT_NEAR(together[i].gradient_norm, alone[i].gradient_norm, tolerance * 10 * alone[i].gradient_norm);
      }
    }
  }
}

TEST_P(TrainedPartsTest, LearnsInBf16) {
  const std::unique_ptr<TrainingGroup> group = Begin(golden_, OptionsOf(golden_, DType::kBf16, 2));
  const std::vector<StepReport> reports = Train(golden_, group.get());
  EXPECT_NEAR(reports.back().loss, golden_.steps.step_loss.back(), 0.05 * golden_.steps.step_loss.back());
}

// Also with layers that run again, and with threads.
TEST_P(TrainedPartsTest, TheSameStepsHaveTheSameBits) {
  const std::unique_ptr<TrainingGroup> first = Begin(golden_, OptionsOf(golden_, DType::kF32, 2));
  TrainingGroupOptions options = OptionsOf(golden_, DType::kF32, 2);
  options.threads = 2;
  options.trainer.save = model::SavePolicy::kLayerInputs;
  const std::unique_ptr<TrainingGroup> second = Begin(golden_, options);
  Train(golden_, first.get(), 3);
  Train(golden_, second.get(), 3);
  EXPECT_EQ(first->Masters(), second->Masters());
  EXPECT_EQ(first->Moments(), second->Moments());
}

INSTANTIATE_TEST_SUITE_P(Goldens, TrainedPartsTest,
                         testing::Values("lora-olmoe-clip", "lora-qwen2-shared", "lora-mixtral-window",
                                         "experts-olmoe-clip", "experts-qwen2-shared", "experts-mixtral-window",
                                         "rules-olmoe-clip", "rules-qwen2-shared"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Of weights in blocks of their own, and of one of three in a block.
TEST(FrozenTest, WeightsKeepTheirBitsAndHaveNeitherGradientsNorMoments) {
  const PartsGolden golden = Load("rules-qwen2-shared");
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    TrainingGroup group(golden.steps.dir, OptionsOf(golden, dtype, 2));
    const Values before = group.Masters();
    Train(golden, &group, 3);
    const Values after = group.Masters(), moments = group.Moments();
    ASSERT_EQ(before.size(), after.size());
    int frozen = 0;
    for (const auto& [name, values] : before) {
      const jobs::ParameterRule* const rule = RuleFor(Rules(), name);
      const bool fixed = rule != nullptr && rule->frozen;
      EXPECT_EQ(after.at(name) == values, fixed) << name;
      if (!fixed) continue;
      ++frozen;
      const auto found = moments.find(name);
      if (absl::StrContains(name, "k_proj")) {  // in a block with q and v
        EXPECT_THAT(found->second, testing::Each(0.0)) << name;
      } else {
        EXPECT_TRUE(found == moments.end()) << name;
      }
    }
    EXPECT_GT(frozen, 20);
  }
}

// Whatever is frozen, gradients of the rest are the same bits.
TEST(FrozenTest, GradientsOfTheRestDoNotChange) {
  for (const std::string& name : TrainingGoldenNames()) {
    const TrainingGolden golden = LoadTrainingGolden(name);
    const TrainRows rows = {.length = golden.length, .tokens = golden.tokens, .targets = golden.targets};
    TrainingGroup all(golden.dir, {.world = 2});
    all.Step({rows}, 0);
    const Values gradients = all.Gradients();
    for (const std::string pattern : {"*embed*", "*norm*", "*experts.1.*", "*experts*", "*down_proj*", "*bias",
                                      "*gate*", "*_proj*", "lm_head*", "*layers.0.*", "*self_attn.o_proj*"}) {
      TrainingGroupOptions options = {.world = 2, .rules = {{.pattern = pattern, .frozen = true}}};
      TrainingGroup some(golden.dir, options);
      const StepReport report = some.Step({rows}, 0);
      EXPECT_TRUE(std::isfinite(report.gradient_norm));
      const Values rest = some.Gradients();
      for (const auto& [key, values] : rest) {
        EXPECT_TRUE(gradients.at(key) == values) << name << " without " << pattern << ": " << key;
      }
      for (const auto& [key, values] : gradients) {
        EXPECT_TRUE(FitsPattern(pattern, key) || rest.count(key) == 1) << name << " without " << pattern << ": " << key;
      }
    }
  }
}

// Masters and moments of experts in a file, of which some are frozen, and replicas that come and go.
TEST(FrozenTest, OffloadAndPackingChangeNoBit) {
  const PartsGolden golden = Load("rules-qwen2-shared");
  TrainingGroupOptions options = {.world = 4};
  options.rules = {{.pattern = "*experts.*.gate_proj.*", .frozen = true},
                   {.pattern = "*layers.1.*experts.*.down_proj.*", .frozen = true},
                   {.pattern = "*experts.2.*", .rate = 2}};
  const auto run = [&](const TrainingGroupOptions& with, bool packs) {
    TrainingGroup group(golden.steps.dir, with);
    Train(golden, &group, 2);
    if (packs) {
      for (const int packing : {2, 4, 1}) {
        for (const absl::Status& status : group.TryRepack(packing)) EXPECT_TRUE(status.ok()) << status;
      }
    }
    Train(golden, &group, 1);
    group.ExpectReplicasAlike();
    return std::make_pair(group.Masters(), group.Moments());
  };
  const auto in_memory = run(options, false);
  EXPECT_TRUE(run(options, true) == in_memory);
  options.offload = [](int) { return OpenStateFileFn(FakeStateFile::Open); };
  EXPECT_TRUE(run(options, false).first == in_memory.first);
  EXPECT_TRUE(run(options, true).first == in_memory.first);
}

TEST(AdapterTest, BeginAsPefts) {
  const PartsGolden golden = Load("lora-olmoe-clip");
  TrainingGroup group(golden.steps.dir, OptionsOf(golden, DType::kF32, 2));
  group.ExpectReplicasAlike();
  const Values masters = group.Masters();
  EXPECT_EQ(masters.size(), golden.last.size());
  for (const auto& [name, values] : masters) {
    ASSERT_EQ(golden.last.count(name), 1u) << name;
    if (absl::EndsWith(name, "lora_B.weight")) {
      EXPECT_THAT(values, testing::Each(0.0)) << name;
      continue;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(values.size()) / static_cast<double>(golden.adapters.rank));
    double sum = 0, squares = 0, largest = 0;
    for (const double value : values) {
      sum += value;
      squares += value * value;
      largest = std::max(largest, std::abs(value));
    }
    const auto count = static_cast<double>(values.size());
    EXPECT_LE(largest, bound) << name;
    EXPECT_GT(largest, 0.9 * bound) << name;
    EXPECT_NEAR(sum / count, 0, 0.2 * bound) << name;
    EXPECT_NEAR(squares / count, bound * bound / 3, 0.1 * bound * bound) << name;
  }
  // With B of 0 the model is its base.
  TrainingGroup base(golden.steps.dir, {.world = 2});
  EXPECT_EQ(group.Evaluate({RowsOfStep(golden.steps, 0)}).loss, base.Evaluate({RowsOfStep(golden.steps, 0)}).loss);
}

TEST(AdapterTest, OnlyAdaptersHaveMasters) {
  for (const char* name : {"lora-qwen2-shared", "experts-qwen2-shared"}) {
    const PartsGolden golden = Load(name);
    TrainingGroup group(golden.steps.dir, OptionsOf(golden));
    for (const ParameterBlock& block : group.parameters(0).blocks()) {
      const bool adapter = absl::StartsWith(block.parts[0].name, "base_model.");
      EXPECT_EQ(block.master.bytes() > 0, adapter) << block.parts[0].name;
      EXPECT_EQ(block.gradient.bytes() > 0, adapter) << block.parts[0].name;
      EXPECT_EQ(block.mean.bytes() > 0, adapter) << block.parts[0].name;
    }
  }
}

// Of its own experts a rank has adapters, of all others none; rules are about each by its name.
TEST(AdapterTest, OfExpertsAreWhereTheExpertsAre) {
  const PartsGolden golden = Load("experts-olmoe-clip");
  TrainingGroupOptions options = OptionsOf(golden, DType::kF32, 4);
  options.rules = {{.pattern = "*.experts.1.*", .frozen = true}, {.pattern = "*lora_A*", .rate = 0.5}};
  TrainingGroup group(golden.steps.dir, options);
  std::vector<int> holders(8);
  for (int r = 0; r < 4; ++r) {
    for (const ParameterBlock& block : group.parameters(r).blocks()) {
      if (block.base || block.shard != model::Shard::kExpert) continue;
      EXPECT_EQ(block.expert / 2, r) << block.parts[0].name;
      EXPECT_EQ(block.frozen, block.expert == 1);
      ++holders[static_cast<size_t>(block.expert)];
    }
  }
  EXPECT_THAT(holders, testing::Each(2 * 2 * 2));  // layers, matrices, A and B
  const Values before = group.Masters();
  Train(golden, &group, 3);
  for (const auto& [name, values] : group.Masters()) {
    EXPECT_EQ(values == before.at(name), absl::StrContains(name, ".experts.1.")) << name;
  }
}

// With rows of experts that are computed again, sent again or read from a file the same bits come out.
TEST(AdapterTest, OfExpertsTrainWhateverIsKept) {
  const PartsGolden golden = Load("experts-qwen2-shared");
  const auto run = [&](const TrainingGroupOptions& options) {
    TrainingGroup group(golden.steps.dir, options);
    Train(golden, &group, 3);
    return std::make_pair(group.Masters(), group.Moments());
  };
  for (const int chunks : {1, 3}) {
    TrainingGroupOptions plain = OptionsOf(golden, DType::kF32, 2);
    plain.trainer.communication.granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = chunks};
    const auto whole = run(plain);
    for (const auto& [input, hidden] :
         {std::make_pair(pipeline::InputRestore::kResend, pipeline::HiddenRestore::kRecompute),
          std::make_pair(pipeline::InputRestore::kKeep, pipeline::HiddenRestore::kRecompute),
          std::make_pair(pipeline::InputRestore::kOffload, pipeline::HiddenRestore::kOffload)}) {
      TrainingGroupOptions options = plain;
      options.trainer.restore = {.input = input, .hidden = hidden};
      options.trainer.open_activations = FakeStateFile::Open;
      EXPECT_TRUE(run(options) == whole) << chunks << " chunks";
    }
  }
}

// Where rows are cut into chunks, an expert's gradients are summed in another order: the same losses but for rounding.
TEST(AdapterTest, OfExpertsTrainInChunks) {
  const PartsGolden golden = Load("experts-qwen2-shared");
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF64, 1e-10), std::make_pair(DType::kF32, 1e-5)}) {
    const std::unique_ptr<TrainingGroup> one = Begin(golden, OptionsOf(golden, dtype, 2));
    const std::vector<StepReport> whole = Train(golden, one.get(), 6);
    for (const int chunks : {2, 5}) {
      TrainingGroupOptions options = OptionsOf(golden, dtype, 2);
      options.trainer.communication.granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = chunks};
      const std::unique_ptr<TrainingGroup> cut = Begin(golden, options);
      const std::vector<StepReport> reports = Train(golden, cut.get(), 6);
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_NEAR(reports[i].loss, whole[i].loss, tolerance * whole[i].loss) << chunks << " chunks, step " << i;
        EXPECT_NEAR(reports[i].gradient_norm, whole[i].gradient_norm, 10 * tolerance * whole[i].gradient_norm);
      }
      EXPECT_TRUE(dtype == DType::kF64 || cut->Masters() != one->Masters()) << "rows were not cut";
    }
  }
}

}  // namespace
}  // namespace switchyard::train
