#include "workers/quantize/samples.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/data/token_file.h"

namespace switchyard::quantize {
namespace {

constexpr int64_t kHeldOutShare = 8;  // one window of so many

absl::Status CheckTokenizer(const SampleOptions& options, const train::TokenFile& file,
                            const model::ModelConfig& config) {
  const jobs::TokenFileHeader& header = file.header();
  if (header.vocab_size > config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("--dataset=", options.dataset, ": its tokens are below ",
                                                   header.vocab_size, ", the model's vocabulary has ",
                                                   config.vocab_size));
  }
  ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(options.model));
  if (header.tokenizer == 0 || !dir.Exists(kTokenizerFile)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, dir.ReadSmallFile(kTokenizerFile, kMostTokenizerBytes));
  if (Fnv1a(text) == header.tokenizer) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--dataset=", options.dataset, ": was packed with another tokenizer than the model's ", kTokenizerFile));
}

absl::Status AppendWindow(const train::TokenFile& file, int64_t window, int64_t length, Windows* to) {
  const int64_t rows = to->num_rows(), first = window * length;
  to->tokens.resize(static_cast<size_t>(rows + length));
  to->is_target.resize(static_cast<size_t>(rows + length));
  const absl::Span<int32_t> tokens = absl::MakeSpan(to->tokens).subspan(rows);
  const absl::Span<uint8_t> is_target = absl::MakeSpan(to->is_target).subspan(rows);
  RETURN_IF_ERROR(file.Read(first, tokens, is_target));
  std::vector<int64_t> begins;
  RETURN_IF_ERROR(file.AppendBegins(first, tokens, &begins));
  if (begins.empty() || begins.front() != first) begins.insert(begins.begin(), first);
  for (const int64_t begin : begins) {
    is_target[static_cast<size_t>(begin - first)] = 0;
    to->begins.push_back(rows + begin - first);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Samples> ReadSamples(const SampleOptions& options, const model::ModelConfig& config,
                                    const std::function<bool()>& stop) {
  if (options.length > config.context) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sequence=", options.length, ": the model's context has ", config.context, " positions"));
  }
  const std::filesystem::path path = options.dataset;
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  ASSIGN_OR_RETURN(const RootDir root, RootDir::Open(folder, "--dataset's folder"));
  ASSIGN_OR_RETURN(const train::TokenFile file, train::TokenFile::Open(root, path.filename()));
  RETURN_IF_ERROR(CheckTokenizer(options, file, config));
  RETURN_IF_ERROR(file.Verify(config.vocab_size, [&](int64_t, int64_t) { return !stop(); }));
  const int64_t windows = file.header().num_tokens / options.length;
  if (windows < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dataset=", options.dataset, ": has ", file.header().num_tokens, " tokens; needed are ", 2 * options.length,
        " at least: two windows of --sequence=", options.length, ", one to calibrate and one to measure"));
  }
  const int64_t held_out = std::clamp<int64_t>(windows / kHeldOutShare, 1, kMostHeldOut);
  const int64_t before = windows - held_out, used = std::min(options.samples, before);
  Samples samples = {.length = options.length, .calibration = {}, .held_out = {}};
  for (int64_t i = 0; i < used; ++i)
    RETURN_IF_ERROR(AppendWindow(file, i * before / used, options.length, &samples.calibration));
  for (int64_t i = before; i < windows; ++i) RETURN_IF_ERROR(AppendWindow(file, i, options.length, &samples.held_out));
  return samples;
}

}  // namespace switchyard::quantize
