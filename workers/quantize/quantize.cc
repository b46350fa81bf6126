#include "workers/quantize/quantize.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/model/config/config_reader.h"
#include "workers/model/weights/serving_type.h"
#include "workers/quantize/calibration.h"
#include "workers/quantize/layer_plan.h"
#include "workers/quantize/output_dir.h"
#include "workers/quantize/output_files.h"
#include "workers/quantize/samples.h"
#include "workers/quantize/token_bytes.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::quantize {
namespace {

constexpr int64_t kTaskValues = 1 << 18;       // that a thread reads and rounds at a time
constexpr int64_t kHeaderBytesOfTensor = 256;  // more than JSON says of one
constexpr int64_t kDefaultLength = 512;        // of a window
constexpr absl::Duration kSayEvery = absl::Seconds(2);

// All that is known before anything is written.
struct Outline {
  absl::btree_set<std::string> consumed;  // tensors that are quantized
  absl::btree_map<std::string, std::string> renamed;
  std::vector<std::string> plain_modules = {"lm_head"};
  int64_t matrices = 0;
  int64_t bytes = 0;  // that will be written, about
};

class Quantizer {
 public:
  Quantizer(const QuantizeOptions& options, model::ModelConfig config, checkpoint::Checkpoint checkpoint, ModelDir dir)
      : options_(options),
        config_(std::move(config)),
        checkpoint_(std::move(checkpoint)),
        dir_(std::move(dir)),
        pool_(options.threads, /*spin=*/false) {}

  absl::StatusOr<QuantizeReport> Run();

 private:
  struct Layer {
    model::ModelWeights weights;
    LayerPlan plan;
  };

  // weights: with room for a layer's in dtype, which nothing has filled.
  absl::StatusOr<Layer> OpenLayer(int64_t layer_idx, DType dtype) const;
  // Sets calibration_.
  absl::Status Calibrate(QuantizeReport* report);
  absl::Status Measure(QuantizeReport* report);
  absl::StatusOr<std::vector<NamedMatrix>> QuantizeLayer(int64_t layer_idx);
  absl::StatusOr<Outline> MakeOutline() const;
  absl::StatusOr<std::vector<NamedMatrix>> RoundLayer(const LayerPlan& plan);
  absl::Status WriteShard(std::vector<checkpoint::TensorToWrite> tensors);
  absl::Status WriteRest(const Outline& outline);
  absl::Status CheckGoing() const {
    return options_.stop() ? absl::CancelledError("interrupted; nothing was written") : absl::OkStatus();
  }
  void Say(absl::string_view line);
  int64_t num_shards() const { return config_.num_layers() + 1; }

  const QuantizeOptions& options_;
  const model::ModelConfig config_;
  const checkpoint::Checkpoint checkpoint_;
  const ModelDir dir_;
  ThreadPool pool_;
  Samples samples_;
  std::unique_ptr<Calibration> calibration_;  // null: rounds to nearest
  std::unique_ptr<OutputDir> output_;
  std::vector<std::vector<std::string>> shards_;  // the names of each one's tensors
  int64_t tensor_bytes_ = 0;
  absl::Time next_line_ = MonotonicNow() + kSayEvery;
};

void Quantizer::Say(absl::string_view line) {
  const absl::Time now = MonotonicNow();
  if (now < next_line_) return;
  next_line_ = now + kSayEvery;
  options_.say(line);
}

absl::StatusOr<Quantizer::Layer> Quantizer::OpenLayer(int64_t layer_idx, DType dtype) const {
  Layer layer;
  ASSIGN_OR_RETURN(layer.weights, model::AllocateWeights(OneLayer(config_, layer_idx), dtype, AllExperts(config_)));
  ASSIGN_OR_RETURN(layer.plan,
                   PlanLayer(config_, checkpoint_, options_.format, layer_idx, &layer.weights.layers.front()));
  return layer;
}

absl::StatusOr<Outline> Quantizer::MakeOutline() const {
  Outline outline;
  for (int64_t i = 0; i < config_.num_layers(); ++i) {
    ASSIGN_OR_RETURN(const Layer layer, OpenLayer(i, DType::kBf16));
    for (const Linear& linear : layer.plan.linears) {
      outline.consumed.insert(linear.source);
      const int64_t values = linear.rows * linear.columns;
      outline.bytes +=
          values * options_.format.bits / 8 + 2 * values / options_.format.group + 3 * kHeaderBytesOfTensor;
    }
    outline.matrices += static_cast<int64_t>(layer.plan.linears.size());
    outline.renamed.insert(layer.plan.renamed.begin(), layer.plan.renamed.end());
    outline.plain_modules.insert(outline.plain_modules.end(), layer.plan.plain_modules.begin(),
                                 layer.plan.plain_modules.end());
  }
  for (const std::string& name : checkpoint_.TensorNames()) {
    if (!outline.consumed.contains(name)) outline.bytes += checkpoint_.Find(name).entry->bytes + kHeaderBytesOfTensor;
  }
  return outline;
}

absl::StatusOr<std::vector<NamedMatrix>> Quantizer::RoundLayer(const LayerPlan& plan) {
  struct Task {
    size_t matrix;
    int64_t first, count;
  };
  std::vector<NamedMatrix> matrices;
  std::vector<Task> tasks;
  for (const Linear& linear : plan.linears) {
    const int64_t step = std::max<int64_t>(kTaskValues / linear.columns, 1);
    for (int64_t row = 0; row < linear.rows; row += step)
      tasks.push_back({matrices.size(), row, std::min(step, linear.rows - row)});
    matrices.push_back({linear.name, QuantizedMatrix(options_.format, linear.rows, linear.columns)});
  }
  absl::Mutex mu;
  absl::Status status;
  pool_.Run(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    const Task& task = tasks[static_cast<size_t>(i)];
    const Linear& linear = plan.linears[task.matrix];
    std::vector<float> values(static_cast<size_t>(task.count * linear.columns));
    absl::Status read = CheckGoing();
    if (read.ok()) read = linear.Read(task.first, task.count, values.data());
    if (!read.ok()) {
      absl::MutexLock lock(&mu);
      return status.Update(read);
    }
    for (int64_t row = 0; row < task.count; ++row)
      RoundRow(values.data() + row * linear.columns, task.first + row, &matrices[task.matrix].matrix);
  });
  RETURN_IF_ERROR(status);
  return matrices;
}

absl::Status Quantizer::WriteShard(std::vector<checkpoint::TensorToWrite> tensors) {
  shards_.emplace_back();
  for (const checkpoint::TensorToWrite& tensor : tensors) {
    shards_.back().push_back(tensor.name);
    int64_t bytes = DTypeBytes(tensor.dtype);
    for (const int64_t dim : tensor.shape) bytes *= dim;
    tensor_bytes_ += bytes;
  }
  return output_->Write(
      {.name = ShardName(static_cast<int64_t>(shards_.size()), num_shards()), .tensors = std::move(tensors)});
}

absl::Status Quantizer::WriteRest(const Outline& outline) {
  ASSIGN_OR_RETURN(std::vector<checkpoint::TensorToWrite> plain,
                   PlainTensors(checkpoint_, outline.consumed, outline.renamed, options_.stop));
  RETURN_IF_ERROR(WriteShard(std::move(plain)));
  RETURN_IF_ERROR(output_->Write({.name = checkpoint::kIndexFile, .text = IndexText(shards_, tensor_bytes_)}));
  ASSIGN_OR_RETURN(const std::vector<checkpoint::CheckpointFile> copied, CopiedFiles(dir_));
  for (const checkpoint::CheckpointFile& file : copied) RETURN_IF_ERROR(output_->Write(file));
  ASSIGN_OR_RETURN(const std::string config_text, dir_.ReadSmallFile(model::kConfigFile, model::kMaxConfigBytes));
  checkpoint::CheckpointFile config = {.name = model::kConfigFile};
  ASSIGN_OR_RETURN(config.text, QuantizedConfig(config_text, options_.format, outline.plain_modules));
  return output_->Write(config);
}

absl::Status Quantizer::Calibrate(QuantizeReport* report) {
  SampleOptions wanted = {.dataset = options_.dataset, .model = options_.model, .samples = options_.samples};
  wanted.length = options_.length > 0 ? options_.length : std::min<int64_t>(kDefaultLength, config_.context);
  ASSIGN_OR_RETURN(samples_, ReadSamples(wanted, config_, options_.stop));
  report->samples = samples_.calibration.num_rows() / samples_.length;
  ASSIGN_OR_RETURN(const DType dtype, model::ServingDType(options_.dtype, config_, checkpoint_));
  ASSIGN_OR_RETURN(calibration_,
                   Calibration::Create(Stream::OnCpu(&pool_), checkpoint_, config_, dtype, options_.format, samples_,
                                       {options_.stop, [this](absl::string_view line) { Say(line); }}));
  return absl::OkStatus();
}

absl::Status Quantizer::Measure(QuantizeReport* report) {
  ASSIGN_OR_RETURN(const HeldOutBits bits, calibration_->MeasureHeldOut());
  report->bits_before = bits.before;
  report->bits_after = bits.after;
  report->rounded_experts = calibration_->rounded_experts();
  std::vector<int32_t> bytes;
  if (dir_.Exists(kTokenizerFile)) {
    // All is computed: a file of which the bytes cannot be read only leaves the figure to be of tokens.
    const absl::StatusOr<std::string> text = dir_.ReadSmallFile(kTokenizerFile, kMostTokenizerBytes);
    absl::StatusOr<std::vector<int32_t>> read = text.ok() ? BytesOfTokens(*text) : text.status();
    if (read.ok()) bytes = *std::move(read);
  }
  for (size_t i = 0; i < samples_.held_out.tokens.size(); ++i) {
    if (samples_.held_out.is_target[i] == 0) continue;
    ++report->held_out_tokens;
    const auto token = static_cast<size_t>(samples_.held_out.tokens[i]);
    if (token < bytes.size()) report->held_out_bytes += bytes[token];
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedMatrix>> Quantizer::QuantizeLayer(int64_t layer_idx) {
  ASSIGN_OR_RETURN(Layer layer, OpenLayer(layer_idx, calibration_ != nullptr ? calibration_->dtype() : DType::kBf16));
  if (calibration_ == nullptr) return RoundLayer(layer.plan);
  return calibration_->QuantizeLayer(layer_idx, std::move(layer.weights), layer.plan);
}

absl::StatusOr<QuantizeReport> Quantizer::Run() {
  QuantizeReport report;
  ASSIGN_OR_RETURN(const Outline outline, MakeOutline());
  // What cannot be copied is known before anything is written.
  RETURN_IF_ERROR(PlainTensors(checkpoint_, outline.consumed, outline.renamed, options_.stop).status());
  ASSIGN_OR_RETURN(output_, OutputDir::Create(options_.output));
  RETURN_IF_ERROR(output_->CheckRoom(outline.bytes));
  if (!options_.dataset.empty()) RETURN_IF_ERROR(Calibrate(&report));
  for (int64_t i = 0; i < config_.num_layers(); ++i) {
    RETURN_IF_ERROR(CheckGoing());
    ASSIGN_OR_RETURN(const std::vector<NamedMatrix> matrices, QuantizeLayer(i));
    RETURN_IF_ERROR(WriteShard(PackedTensors(matrices)));
    Say(absl::StrCat("layer ", i + 1, " of ", config_.num_layers(), " is written"));
  }
  RETURN_IF_ERROR(WriteRest(outline));
  if (calibration_ != nullptr) RETURN_IF_ERROR(Measure(&report));
  RETURN_IF_ERROR(CheckGoing());
  RETURN_IF_ERROR(output_->Finish());
  report.matrices = outline.matrices;
  report.bytes_after = tensor_bytes_;
  for (const std::string& name : checkpoint_.TensorNames()) report.bytes_before += checkpoint_.Find(name).entry->bytes;
  return report;
}

}  // namespace

absl::StatusOr<QuantizeReport> Quantize(const QuantizeOptions& options) {
  RETURN_IF_ERROR(CheckFormat(options.format));
  if (options.model.empty()) return absl::InvalidArgumentError("--model: name the directory of a checkpoint");
  if (IsGgufFile(options.model)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model=", options.model, ": is a GGUF file; quantize the directory of its bf16, fp16 or fp32 checkpoint"));
  }
  ASSIGN_OR_RETURN(ModelDir dir, ModelDir::Open(options.model));
  ASSIGN_OR_RETURN(model::ModelConfig config, model::ReadModelConfig(options.model));
  RETURN_IF_ERROR(CheckQuantizable(config));
  ASSIGN_OR_RETURN(checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::Open(dir));
  return Quantizer(options, std::move(config), std::move(checkpoint), std::move(dir)).Run();
}

}  // namespace switchyard::quantize
