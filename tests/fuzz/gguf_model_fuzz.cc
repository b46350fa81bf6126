// GGUF files as models: what the metadata says of config and tokenizer, tensors by HuggingFace's names, and their
// values.  All readings end alike when they are repeated; a model's tensors lie in the file, sorted, each name once; a
// config that is taken is the config reader's, too; ids that a tokenizer gives are those of tokens.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/gguf/gguf_file.h"
#include "server/text/model_files.h"
#include "server/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "workers/checkpoint/gguf/gguf_config.h"
#include "workers/checkpoint/gguf/gguf_names.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"

namespace switchyard::fuzz {
namespace {

constexpr int64_t kMostValues = 1 << 16;  // that are decoded of an input
constexpr char kText[] = "It's 2024: a caf\u00e9 \u4f60\u597d\n\n  x";

// A folder with the one file, which each input overwrites.
class ModelFile {
 public:
  ModelFile() {
    std::string pattern = std::filesystem::temp_directory_path() / "gguf_model_fuzz_XXXXXX";
    SY_CHECK(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
  }
  ~ModelFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string Write(absl::string_view bytes) const {
    const std::string path = absl::StrCat(folder_, "/model.gguf");
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    SY_CHECK(file >= 0);
    while (!bytes.empty()) {
      const ssize_t written = write(file, bytes.data(), bytes.size());
      SY_CHECK(written > 0);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    close(file);
    return path;
  }

 private:
  std::string folder_;
};

void CheckNames(const GgufCheckpoint& checkpoint, int64_t file_bytes) {
  const auto tensors = checkpoint::ListGgufModelTensors(checkpoint);
  CheckSameEnd(tensors, checkpoint::ListGgufModelTensors(checkpoint));
  if (!tensors.ok()) return;
  for (size_t i = 0; i < tensors->size(); ++i) {
    const checkpoint::GgufModelTensor& each = (*tensors)[i];
    SY_CHECK(i == 0 || (*tensors)[i - 1].name < each.name);
    SY_CHECK(each.begin >= 0 && each.bytes > 0 && each.begin + each.bytes <= file_bytes);
    int64_t elements = 1;
    for (const int64_t dim : each.shape) elements *= dim;
    SY_CHECK_EQ(elements / each.format->elements * each.format->bytes, each.bytes);
  }
}

void CheckConfig(const GgufCheckpoint& checkpoint) {
  const auto text = checkpoint::GgufConfigText(checkpoint);
  CheckSameEnd(text, checkpoint::GgufConfigText(checkpoint));
  if (!text.ok()) return;
  const auto config = model::ParseModelConfig(*text, "");
  CheckSameEnd(config, model::ParseModelConfig(*text, ""));
  if (!config.ok()) return;
  SY_CHECK(config->num_layers() > 0 && config->num_experts > 0 && config->hidden > 0);
}

// Of the first rows of each matrix, as floats and as the numbers that a weight would hold.
void ReadMatrices(const std::string& path) {
  const auto checkpoint = checkpoint::Checkpoint::Open(path);
  if (!checkpoint.ok()) return;
  const auto read = [](const checkpoint::WeightsFile& file, int64_t begin, absl::Span<uint8_t> to) {
    return file.Read(begin, static_cast<int64_t>(to.size()), to.data());
  };
  checkpoint::MatrixScratch scratch;
  int64_t left = kMostValues;
  for (const std::string& name : checkpoint->TensorNames()) {
    const auto matrix = checkpoint::OpenMatrix(*checkpoint, nullptr, name, checkpoint->Find(name).entry->shape);
    if (!matrix.ok() || *matrix == nullptr) continue;
    const checkpoint::MatrixReader& reader = **matrix;
    const int64_t rows = std::min(reader.row_step(), reader.rows()), values = rows * reader.columns();
    if (values > left) continue;
    left -= values;
    std::vector<float> floats(static_cast<size_t>(values));
    SY_CHECK_OK(reader.Read(0, rows, floats.data(), read, &scratch));
    if (reader.own_format() == ops::WeightFormat::kPlain) continue;
    std::vector<uint8_t> numbers(static_cast<size_t>(values));
    std::vector<uint16_t> scales(numbers.size() / ops::kQuantGroup), least(scales.size());
    const ops::StoredNumbers to = {.numbers = numbers.data(), .scales = scales.data(), .least = least.data()};
    if (!reader.ReadNumbers(0, rows, to, read, &scratch).ok()) continue;
    const uint8_t most = ops::WeightBits(reader.own_format()) == 8 ? 255 : 15;
    for (const uint8_t number : numbers) SY_CHECK(number <= most);
  }
}

void ReadTexts(const std::string& path, int64_t num_tokens) {
  const auto files = text::OpenModelFiles(path, /*tokenizer=*/true);
  if (!files.ok() || !files->Exists("tokenizer.json")) return;
  const auto json = files->ReadSmallFile("tokenizer.json", int64_t{1} << 30);
  SY_CHECK_OK(json.status());
  const auto tokenizer = tokenizer::Tokenizer::FromJson(*json);
  if (!tokenizer.ok()) return;
  const auto ids = (*tokenizer)->Encode(kText);
  if (!ids.ok()) return;
  for (const int32_t id : *ids) SY_CHECK(id >= 0 && id < num_tokens);
  (void)(*tokenizer)->Decode(*ids, /*skip_special_tokens=*/false);
}

}  // namespace

void Fuzz(absl::string_view input) {
  static const ModelFile file;
  const std::string path = file.Write(input);
  const auto checkpoint = GgufCheckpoint::Open(path);
  if (!checkpoint.ok()) return;
  CheckNames(*checkpoint, static_cast<int64_t>(input.size()));
  CheckConfig(*checkpoint);
  ReadMatrices(path);
  const GgufValue* const tokens = checkpoint->metadata().Find("tokenizer.ggml.tokens");
  ReadTexts(path, tokens == nullptr ? 0 : tokens->size());
}

}  // namespace switchyard::fuzz
