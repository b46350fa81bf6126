#include "tests/workers/model/fixture.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::model {
namespace {

constexpr char kRoot[] = "tests/golden/models";

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& dir) {
    absl::StatusOr<ModelDir> model_dir = ModelDir::Open(dir);
    SY_CHECK_OK(model_dir.status());
    auto file = checkpoint::WeightsFile::OpenSafetensors(*model_dir, "goldens.safetensors");
    SY_CHECK_OK(file.status());
    file_ = *std::move(file);
    for (const auto& [name, entry] : file_->tensors()) entries_[name] = &entry;
  }

  template <class Value>
  bool Read(const std::string& name, std::vector<Value>* out) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) return false;
    out->resize(it->second->bytes / sizeof(Value));
    SY_CHECK_OK(file_->Read(it->second->begin, it->second->bytes, out->data()));
    return true;
  }

 private:
  std::unique_ptr<checkpoint::WeightsFile> file_;
  absl::flat_hash_map<std::string, const checkpoint::TensorEntry*> entries_;
};

}  // namespace

std::vector<std::string> FixtureNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot)) {
    if (std::filesystem::exists(entry.path() / "goldens.safetensors")) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  SY_CHECK(!names.empty());
  return names;
}

Fixture LoadFixture(const std::string& name) {
  Fixture fixture{name, absl::StrCat(kRoot, "/", name), {}, {}, {}, {}};
  const GoldenFile file(fixture.dir);
  const auto read_logits = [&](const std::string& prefix, LogitsGolden* golden) {
    if (!file.Read(prefix + ".tokens", &golden->tokens)) return false;
    SY_CHECK(file.Read(prefix + ".values", &golden->values) && file.Read(prefix + ".bf16", &golden->bf16));
    return true;
  };
  for (LogitsGolden golden; read_logits(absl::StrCat("logits.", fixture.logits.size()), &golden);) {
    fixture.logits.push_back(golden);
  }
  SY_CHECK(read_logits("steady", &fixture.steady));
  SY_CHECK(file.Read("steady.experts", &fixture.steady_experts));
  for (GreedyGolden golden; file.Read(absl::StrCat("greedy.", fixture.greedy.size(), ".prompt"), &golden.prompt);) {
    SY_CHECK(file.Read(absl::StrCat("greedy.", fixture.greedy.size(), ".tokens"), &golden.tokens));
    fixture.greedy.push_back(golden);
  }
  return fixture;
}

std::string TestName(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace switchyard::model
