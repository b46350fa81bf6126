// Settings of training in a model's config.json: obeyed, or refused by name.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/byte_io.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/train/job/train_job.h"

namespace switchyard::train {
namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;

class TrainJobConfigTest : public JobFixture {
 protected:
  std::string ModelPath(const std::string& name) const { return root_.path() + "/checkpoints/model/" + name; }
  void Edit(const std::function<void(ordered_json*)>& edit) {
    ordered_json config = ordered_json::parse(ReadAll(ModelPath("config.json")));
    edit(&config);
    root_.Write("checkpoints/model/config.json", config.dump(1));
  }
  void Set(const std::string& key, const ordered_json& value) {
    Edit([&](ordered_json* config) { (*config)[key] = value; });
  }
  // Adds an F32 of one element to the base's weights.
  void AddTensor(const std::string& name) {
    const std::string bytes = ReadAll(ModelPath("model.safetensors"));
    const auto length = LoadInt<uint64_t>(bytes.data());
    ordered_json header = ordered_json::parse(bytes.substr(8, length));
    const std::string data = bytes.substr(8 + length) + std::string(4, '\0');
    header[name] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {data.size() - 4, data.size()}}};
    std::string text = header.dump(), out;
    text.resize((text.size() + 7) / 8 * 8, ' ');
    AppendInt(static_cast<uint64_t>(text.size()), &out);
    root_.Write("checkpoints/model/model.safetensors", out + text + data);
  }
  jobs::JobSpec Anew() const {
    jobs::JobSpec spec = Spec();
    spec.architecture = std::exchange(spec.base_checkpoint, "");
    return spec;
  }
  void ExpectRefused(const jobs::JobSpec& spec, absl::StatusCode code, const std::string& message) {
    const std::vector<RankStory> stories = Run(spec, {.world = 2});
    ExpectEnd(stories, jobs::TrainOutcome::kFailed, code, message);
    EXPECT_FALSE(stories[0].started);
    EXPECT_TRUE(Steps().empty());
  }
  // Of a tensor of the newest checkpoint, in F32.
  double DeviationOf(int64_t step, const std::string& tensor) const {
    const absl::StatusOr<checkpoint::Checkpoint> checkpoint =
        checkpoint::Checkpoint::Open(JobPath(checkpoint::StepFolder(step)));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    const checkpoint::TensorLocation at = checkpoint->Find(tensor);
    if (at.file == nullptr) {
      ADD_FAILURE() << tensor;
      return 0;
    }
    EXPECT_EQ(at.entry->dtype, "F32");
    std::vector<float> values(static_cast<size_t>(at.entry->bytes) / sizeof(float));
    EXPECT_TRUE(at.file->Read(at.entry->begin, at.entry->bytes, values.data()).ok());
    double squares = 0;
    for (const float value : values) squares += value * value;
    return std::sqrt(squares / static_cast<double>(values.size()));
  }
  nlohmann::json ShapeOfStep(int64_t step) const {
    return nlohmann::json::parse(FilesOfStep(step).at("trainer_state.json"))["shape"];
  }
};

TEST_F(TrainJobConfigTest, InitializerRangeIsObeyed) {
  jobs::JobSpec spec = Anew();
  spec.steps = 1;
  spec.optimizer.schedule.peak = 1e-9;
  spec.optimizer.schedule.warmup_steps = 0;
  for (const double range : {0.08, 0.02, 0.0}) {  // 0: the key is not there
    if (range > 0) Set("initializer_range", range);
    if (range == 0) Edit([](ordered_json* config) { config->erase("initializer_range"); });
    ASSERT_EQ(Run(spec, {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
    const double expected = range > 0 ? range : 0.02;
    EXPECT_NEAR(DeviationOf(1, "model.embed_tokens.weight"), expected, 0.05 * expected);
    // What writes to the residual stream of two layers is half as wide.
    EXPECT_NEAR(DeviationOf(1, "model.layers.1.self_attn.o_proj.weight"), expected / 2, 0.05 * expected);
    ForgetJob();
  }
  Set("initializer_range", 0);
  ExpectRefused(spec, absl::StatusCode::kInvalidArgument,
                "architecture model: config.json: initializer_range: expected a number in (0, ");
}

// Those that models of other families have, or none.
TEST_F(TrainJobConfigTest, OtherModelsDropoutIsRefusedByName) {
  for (const char* key : {"router_jitter_noise", "resid_pdrop", "hidden_dropout"}) {
    Set(key, 0.3);
    for (const jobs::JobSpec& spec : {Spec(), Anew()}) {
      ExpectRefused(spec, absl::StatusCode::kUnimplemented,
                    absl::StrCat(" model: config.json: ", key, ": 0.3, but models of olmoe have no such dropout"));
    }
    Set(key, "much");
    ExpectRefused(Spec(), absl::StatusCode::kInvalidArgument, absl::StrCat(key, ": expected a number in [0, "));
    Set(key, 0.0);
    EXPECT_EQ(Run(Spec(), {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
    ForgetJob();
  }
}

TEST_F(TrainJobConfigTest, TheBasesCoefficientIsTheBalanceLosssWeight) {
  const auto weight = [&](const jobs::JobSpec& spec) {
    EXPECT_EQ(Run(spec, {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
    const std::string found = ShapeOfStep(spec.steps)["balance_weight"].get<std::string>();
    ForgetJob();
    return std::stod(found);
  };
  jobs::JobSpec spec = Spec();
  EXPECT_EQ(weight(spec), 0.01);
  Set("router_aux_loss_coef", 0.25);
  EXPECT_EQ(weight(spec), 0.25);
  spec.balance_weight = 0.5;
  EXPECT_EQ(weight(spec), 0.5);
  spec.balance_weight = 0;
  EXPECT_EQ(weight(spec), 0);
}

// The gradient includes it: another weight gives another training.
TEST_F(TrainJobConfigTest, TheBasesCoefficientIsTrainedWith) {
  jobs::JobSpec spec = Spec();
  spec.balance_weight = 0.25;
  const auto said = Undisturbed(spec, 2);
  spec.balance_weight.reset();
  const auto usual = Undisturbed(spec, 2);
  Set("router_aux_loss_coef", 0.25);
  const auto found = Undisturbed(spec, 2);
  for (const char* file : {"optimizer-rank00000.safetensors", "model-00002-of-00002.safetensors"}) {
    EXPECT_TRUE(found.at(file) == said.at(file)) << file;
    EXPECT_FALSE(found.at(file) == usual.at(file)) << file;
  }
}

TEST_F(TrainJobConfigTest, FewerLayersThanTheCheckpointHasAreRefused) {
  Set("num_hidden_layers", 1);
  ExpectRefused(Spec(), absl::StatusCode::kInvalidArgument,
                "num_hidden_layers is 1, the checkpoint has 2 layers; correct config.json");
}

TEST_F(TrainJobConfigTest, TensorsThatNobodyUsesAreNamed) {
  AddTensor("model.layers.0.self_attn.rotary_emb.inv_freq");
  EXPECT_EQ(Run(Spec(), {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished) << "a buffer of old versions";
  ForgetJob();
  AddTensor("model.adapter.weight");
  ExpectRefused(Spec(), absl::StatusCode::kInvalidArgument, "not part of OlmoeForCausalLM: model.adapter.weight");
}

// Those of other ranks' experts are used there, but not what no expert has.
TEST_F(TrainJobConfigTest, TensorsOfExpertsThatNobodyUsesAreNamed) {
  AddTensor("model.layers.1.mlp.experts.3.down_proj.bias");
  ExpectRefused(Spec(), absl::StatusCode::kInvalidArgument,
                "1 tensors of the checkpoint are not part of OlmoeForCausalLM: "
                "model.layers.1.mlp.experts.3.down_proj.bias");
}

TEST_F(TrainJobConfigTest, ACheckpointSaysTheDtypeThatItHas) {
  const auto config_of = [&](const jobs::JobSpec& spec) {
    const auto files = Undisturbed(spec, 2);
    return ordered_json::parse(files.at("config.json"));
  };
  jobs::JobSpec spec = Spec();  // fp32, of a bf16 base with torch_dtype
  const ordered_json wide = config_of(spec);
  EXPECT_EQ(wide.value("dtype", ""), "float32");
  EXPECT_EQ(wide.value("torch_dtype", ""), "float32");
  ordered_json rest = wide;
  rest.erase("dtype");
  rest["torch_dtype"] = "bfloat16";
  EXPECT_EQ(rest.dump(), ordered_json::parse(ReadAll(ModelPath("config.json"))).dump()) << "all else as it was";
  Edit([](ordered_json* config) {
    config->erase("torch_dtype");
    (*config)["dtype"] = "float32";
  });
  spec.dtype = jobs::TrainDType::kBf16;
  const ordered_json narrow = config_of(spec);
  EXPECT_EQ(narrow.value("dtype", ""), "bfloat16");
  EXPECT_FALSE(narrow.contains("torch_dtype"));
  spec.dtype = jobs::TrainDType::kF32;
  EXPECT_EQ(Undisturbed(spec, 2).at("config.json"), ReadAll(ModelPath("config.json"))) << "it says so already";
}

}  // namespace
}  // namespace switchyard::train
