// The names of --adapters in every API: which there are, what an answer carries, what is refused.
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/e2e/http_client.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kModel[] = "tests/golden/models/olmoe-clip";

TEST(AdapterNamesTest, ModelsAreListed) {
  constexpr char kAdapters[] = "tests/golden/adapters";
  const auto server = TestServer::Start(
      {.model = kModel,
       .flags = {"--threads=1", absl::StrCat("--adapters=lora=", kAdapters, "/lora-olmoe-clip,other=", kAdapters,
                                             "/other-olmoe-clip")}});
  ASSERT_NE(server, nullptr);
  const json models = HttpCall(server->http_address(), "GET", "/v1/models").json();
  std::vector<std::string> ids;
  for (const json& each : models["data"]) {
    ids.push_back(each["id"]);
    EXPECT_EQ(each["root"], "olmoe-clip");
    EXPECT_EQ(each["parent"], ids.size() == 1 ? json(nullptr) : json("olmoe-clip"));
    EXPECT_EQ(each["max_model_len"], 640);
  }
  EXPECT_THAT(ids, ElementsAre("olmoe-clip", "olmoe-clip:lora", "olmoe-clip:other"));
  const json one = HttpCall(server->http_address(), "GET", "/v1/models/olmoe-clip:other").json();
  EXPECT_EQ(one["id"], "olmoe-clip:other");
  EXPECT_EQ(one["parent"], "olmoe-clip");
  const HttpAnswer none = HttpCall(server->http_address(), "GET", "/v1/models/other");
  EXPECT_EQ(none.status, 404);
  EXPECT_THAT(none.body, HasSubstr(R"(this server has \"olmoe-clip\", \"olmoe-clip:lora\", \"olmoe-clip:other\")"));

  const auto described = server->client().GetModelInfo("olmoe-clip:lora");
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->model(), "olmoe-clip:lora");
  EXPECT_THAT(described->models(), ElementsAre("olmoe-clip", "olmoe-clip:lora", "olmoe-clip:other"));

  v1::GenerateRequest request = IdsRequest({3, 4, 5}, 4);
  for (const auto& [asked, answered] : {std::pair("olmoe-clip:lora", "olmoe-clip:lora"),
                                        std::pair("olmoe-clip", "olmoe-clip"), std::pair("", "olmoe-clip")}) {
    request.set_model(asked);
    const StreamSeen seen = Generate(server->client(), request);
    EXPECT_TRUE(seen.ok()) << seen.end << " " << seen.fault;
    EXPECT_EQ(seen.model, answered);
  }
  request.set_model("olmoe-clip:third");
  const StreamSeen refused = Generate(server->client(), request);
  EXPECT_EQ(refused.end.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(refused.end.message()), HasSubstr("\"olmoe-clip:lora\", \"olmoe-clip:other\""));
  const std::string page = Scrape(server->metrics_address());
  EXPECT_THAT(page, ContainsRegex("switchyard_adapter_requests_total\\{[^}]*adapter=\"lora\"[^}]*\\} 1\n"));
  EXPECT_THAT(page, ContainsRegex("switchyard_adapter_requests_total\\{[^}]*adapter=\"other\"[^}]*\\} 0\n"));
}

// An adapter of the demo model's q_proj and v_proj, drawn, large enough to be seen in an answer.
void WriteDemoAdapter(const model::TempDir& dir) {
  std::ifstream file(absl::StrCat(kDemoModel, "/config.json"));
  const json config = json::parse(file);
  const int64_t hidden = config["hidden_size"], head_dim = config["head_dim"];
  std::mt19937 gen(5);
  const auto draw = [&](int64_t rows, int64_t columns) {
    std::normal_distribution<float> normal(0, 0.3F);
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (float& value : values) value = normal(gen);
    return checkpoint::FloatTensor("F32", {rows, columns}, values);
  };
  std::map<std::string, checkpoint::WrittenTensor> tensors;
  for (int layer = 0; layer < config["num_hidden_layers"].get<int>(); ++layer) {
    for (const auto& [name, heads] :
         {std::pair("q_proj", "num_attention_heads"), std::pair("v_proj", "num_key_value_heads")}) {
      const std::string module = absl::StrCat("base_model.model.model.layers.", layer, ".self_attn.", name);
      tensors[module + ".lora_A.weight"] = draw(4, hidden);
      tensors[module + ".lora_B.weight"] = draw(config[heads].get<int64_t>() * head_dim, 4);
    }
  }
  dir.Write("adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": 4})");
  dir.Write("adapter_model.safetensors", checkpoint::SafetensorsBytes(tensors));
}

class AdapterApisTest : public testing::Test {
 protected:
  AdapterApisTest() {
    WriteDemoAdapter(dir_);
    server_ = TestServer::Start({.model = kDemoModel, .flags = {"--threads=1", "--adapters=law=" + dir_.path()}});
  }
  void SetUp() override { ASSERT_NE(server_, nullptr); }
  // model: "" is left out.
  HttpAnswer Post(const std::string& path, json body, const std::string& model) {
    if (!model.empty()) body["model"] = model;
    return HttpCall(server_->http_address(), "POST", path, body.dump());
  }

  const model::TempDir dir_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(AdapterApisTest, EveryHttpApiHasTheirNames) {
  const json turns = {{{"role", "user"}, {"content", "Who are you?"}}};
  const std::pair<const char*, json> kGenerating[] = {
      {"/v1/completions", {{"prompt", "In the beginning"}, {"max_tokens", 8}, {"temperature", 0}}},
      {"/v1/chat/completions", {{"messages", turns}, {"max_tokens", 8}, {"temperature", 0}}},
      {"/v1/responses", {{"input", "Who are you?"}, {"max_output_tokens", 8}, {"temperature", 0}}},
      {"/v1/messages", {{"messages", turns}, {"max_tokens", 8}, {"temperature", 0}}}};
  for (const auto& [path, body] : kGenerating) {
    for (const bool streams : {false, true}) {
      SCOPED_TRACE(absl::StrCat(path, streams ? ", streamed" : ""));
      json asked = body;
      asked["stream"] = streams;
      for (const auto& [name, answered] : {std::pair("demo-model:law", "demo-model:law"),
                                           std::pair("demo-model", "demo-model"), std::pair("", "demo-model")}) {
        const HttpAnswer answer = Post(path, asked, name);
        EXPECT_EQ(answer.status, 200) << answer.body;
        EXPECT_THAT(answer.body, HasSubstr(absl::StrCat("\"model\":\"", answered, "\"")));
      }
      const HttpAnswer unknown = Post(path, asked, "demo-model:code");
      EXPECT_EQ(unknown.status, 404);
      EXPECT_THAT(unknown.body, HasSubstr(R"(this server has \"demo-model\", \"demo-model:law\")"));
    }
  }
  const json text = kGenerating[0].second;
  EXPECT_NE(Post("/v1/completions", text, "demo-model:law").json()["choices"],
            Post("/v1/completions", text, "demo-model").json()["choices"])
      << "the adapter would not be seen";
  const std::pair<const char*, json> kOthers[] = {{"/tokenize", {{"prompt", "Hi there"}}},
                                                  {"/detokenize", {{"tokens", {40, 41}}}},
                                                  {"/v1/messages/count_tokens", {{"messages", turns}}}};
  for (const auto& [path, body] : kOthers) {
    SCOPED_TRACE(path);
    const HttpAnswer base = Post(path, body, "demo-model");
    EXPECT_EQ(base.status, 200) << base.body;
    for (const char* const name : {"demo-model:law", ""}) EXPECT_EQ(Post(path, body, name).body, base.body);
    EXPECT_EQ(Post(path, body, "demo-model:code").status, 404);
  }
}

// The workers have yet to say which adapters there are, so a name may be right.
TEST(AdapterNamesTest, WhileItLoadsAnAdapterIsNotUnknown) {
  const auto server = TestServer::Start({.model = kModel, .workers = 0, .flags = {"--workers=1"}, .wait_ready = false});
  ASSERT_NE(server, nullptr);
  const auto ask = [&](const std::string& name) {
    return HttpCall(server->http_address(), "GET", "/v1/models/" + name);
  };
  const HttpAnswer loading = ask("olmoe-clip:law");
  EXPECT_EQ(loading.status, 503);
  EXPECT_EQ(loading.headers.count("retry-after"), 1U);
  EXPECT_THAT(loading.body, HasSubstr("model olmoe-clip is LOADING"));
  EXPECT_EQ(ask("olmoe-clip").status, 200);
  const HttpAnswer other = ask("law");
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(other.body, AllOf(HasSubstr("this server has"), Not(HasSubstr("LOADING"))));
}

}  // namespace
}  // namespace switchyard
