#include "workers/model/weights/loader.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/safetensors/block_check.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/model/weights/adapters.h"
#include "workers/model/weights/packed_uploads.h"
#include "workers/model/weights/unfit_values.h"
#include "workers/model/weights/unused_tensors.h"
#include "workers/moe/experts/expert_checksum.h"
#include "workers/tensor/device_writer.h"

namespace switchyard::model {
namespace {

constexpr int64_t kChunkBytes = 4 << 20;  // of a read: enough for any disk, small enough for threads to share a tensor
constexpr int64_t kMostBytes = 8 << 20;   // of values that are read together since fewer would be slow
constexpr absl::Duration kProgressEvery = absl::Milliseconds(250);
constexpr absl::Duration kLogEvery = absl::Seconds(2);

// Some rows of a param: one read and one PackRows.
struct Piece {
  const Param* param = nullptr;
  checkpoint::TensorLocation at = {};
  DType dtype = DType::kBf16;  // of the file, or of decoded values
  int64_t begin = 0;           // in the file; of a quantized matrix: rises with its rows
  int64_t row = 0;             // first, of the param's
  int64_t rows = 0;

  int64_t bytes() const { return rows * param->columns * DTypeBytes(dtype); }
  int64_t read_bytes() const { return param->matrix == nullptr ? bytes() : param->matrix->ReadSize(rows); }
};

// Whether the weight holds the numbers that the checkpoint has.
bool KeepsNumbers(const Param& param) {
  return param.matrix != nullptr && param.weight != nullptr &&
         param.matrix->own_format() != ops::WeightFormat::kPlain &&
         param.matrix->own_format() == param.weight->format();
}

class Loader {
 public:
  // writer: null for the CPU.
  Loader(DType dtype, LoadOptions* options, DeviceWriter* writer)
      : dtype_(dtype), options_(options), writer_(writer), uploads_(writer) {}

  void AddPieces(const checkpoint::Checkpoint& checkpoint, const std::vector<Param>& params);
  absl::Status Run();

 private:
  // A thread's own.
  struct Staging {
    Tensor rows;
    int64_t capacity = 0;
    std::string block;
    checkpoint::MatrixScratch matrix;
  };

  void Work();
  absl::Status Load(const Piece& piece, Staging* staging);
  void AddSum(const Piece& piece, absl::string_view bytes);
  absl::Status CheckValues(const Piece& piece, const TensorView& rows) const;
  absl::Status PlaceInWeight(const Param& param, int64_t row, const TensorView& rows);
  absl::Status PlaceNumbers(const Param& param, int64_t row, int64_t count, const ops::StoredNumbers& from);
  absl::Status Place(const Piece& piece, const TensorView& rows);
  void Report(int64_t bytes);
  void Fail(const absl::Status& status);

  const DType dtype_;
  LoadOptions* const options_;
  DeviceWriter* const writer_;
  PackedUploads uploads_;
  std::vector<Piece> pieces_;
  absl::flat_hash_map<const checkpoint::WeightsFile*, std::unique_ptr<checkpoint::BlockCheck>>
      checks_;  // of files with block sums
  int64_t total_bytes_ = 0;
  absl::Time start_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  int64_t done_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time next_report_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Time next_log_ ABSL_GUARDED_BY(mu_);
};

void Loader::AddPieces(const checkpoint::Checkpoint& checkpoint, const std::vector<Param>& params) {
  for (const Param& param : params) {
    const checkpoint::MatrixReader* const matrix = param.matrix.get();
    const checkpoint::TensorLocation at = matrix != nullptr ? matrix->location() : checkpoint.Find(param.name);
    const DType dtype = matrix != nullptr ? DType::kF32 : *checkpoint::ParseSafetensorsDType(at.entry->dtype);
    const int64_t row_bytes = param.columns * DTypeBytes(dtype);
    const int64_t pair = param.interleaved && !param.bias ? 2 : 1;
    const int64_t row_step = std::max(matrix != nullptr ? matrix->row_step() : 1, pair);
    // What is decoded lies beside its codes.
    int64_t step = std::max<int64_t>((matrix != nullptr ? kChunkBytes / 2 : kChunkBytes) / row_bytes, 1);
    if (matrix != nullptr && row_bytes <= kMostBytes / matrix->good_rows()) step = std::max(step, matrix->good_rows());
    step = (step + row_step - 1) / row_step * row_step;
    const int64_t panels = std::lcm(row_step, ops::kPanelColumns);  // whole ones pack best
    if (step > panels) step -= step % panels;
    for (int64_t row = 0; row < param.rows; row += step) {
      const int64_t first = param.source_row + row;
      pieces_.push_back({.param = &param,
                         .at = at,
                         .dtype = dtype,
                         .begin = at.entry->begin + (matrix != nullptr ? first : first * row_bytes),
                         .row = row,
                         .rows = std::min(step, param.rows - row)});
      total_bytes_ += pieces_.back().read_bytes();
    }
  }
  for (const std::unique_ptr<checkpoint::WeightsFile>& file : checkpoint.files()) {
    if (!file->block_sums().empty()) checks_[file.get()] = std::make_unique<checkpoint::BlockCheck>(file.get());
  }
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return a.at.file != b.at.file ? a.at.file->name() < b.at.file->name() : a.begin < b.begin;
  });
}

absl::Status Loader::Run() {
  start_ = MonotonicNow();
  {
    absl::MutexLock lock(&mu_);
    next_log_ = start_ + kLogEvery;
  }
  std::vector<std::thread> threads;
  for (int i = 1; i < options_->num_threads; ++i) {
    threads.emplace_back([this] { Work(); });
  }
  Work();
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock lock(&mu_);
  return status_;
}

void Loader::Work() {
  Staging staging;
  while (!stop_.load(std::memory_order_relaxed)) {
    const size_t i = next_.fetch_add(1);
    if (i >= pieces_.size()) return;
    if (pieces_[i].bytes() > staging.capacity) {
      staging.capacity = std::max(pieces_[i].bytes(), std::min(kChunkBytes, total_bytes_));
      staging.rows = Tensor(DType::kU8, {staging.capacity});
    }
    if (absl::Status status = Load(pieces_[i], &staging); !status.ok()) return Fail(status);
    Report(pieces_[i].read_bytes());
  }
}

absl::Status Loader::Load(const Piece& piece, Staging* staging) {
  uint8_t* const to = staging->rows.data<uint8_t>();
  const absl::Span<uint8_t> bytes(to, static_cast<size_t>(piece.bytes()));
  const auto read = [&](const checkpoint::WeightsFile& file, int64_t begin, absl::Span<uint8_t> part) {
    RETURN_IF_ERROR(file.Read(begin, static_cast<int64_t>(part.size()), part.data()));
    const auto check = checks_.find(&file);
    if (check == checks_.end()) return absl::OkStatus();
    const absl::string_view text(reinterpret_cast<const char*>(part.data()), part.size());
    return check->second->Check(begin, text, &staging->block);
  };
  const checkpoint::MatrixReader* const matrix = piece.param->matrix.get();
  if (KeepsNumbers(*piece.param)) {
    const int64_t numbers = piece.rows * piece.param->columns,
                  scales = numbers / ops::ScaleGroup(piece.param->weight->format());
    auto* const bits = reinterpret_cast<uint16_t*>(to + numbers);
    const bool least = ops::HasLeast(piece.param->weight->format());
    const ops::StoredNumbers stored = {to, bits, least ? bits + scales : nullptr};
    RETURN_IF_ERROR(
        matrix->ReadNumbers(piece.param->source_row + piece.row, piece.rows, stored, read, &staging->matrix));
    AddSum(piece, absl::string_view(reinterpret_cast<const char*>(to),
                                    static_cast<size_t>(numbers + (least ? 4 : 2) * scales)));
    return PlaceNumbers(*piece.param, piece.row, piece.rows, stored);
  }
  if (matrix != nullptr) {
    RETURN_IF_ERROR(matrix->Read(piece.param->source_row + piece.row, piece.rows, reinterpret_cast<float*>(to), read,
                                 &staging->matrix));
  } else {
    RETURN_IF_ERROR(read(*piece.at.file, piece.begin, bytes));
  }
  AddSum(piece, absl::string_view(reinterpret_cast<const char*>(to), bytes.size()));
  const TensorView rows(to, piece.dtype, {piece.rows, piece.param->columns});
  RETURN_IF_ERROR(CheckValues(piece, rows));
  return Place(piece, rows);
}

// The order of pieces does not matter: adds sums that are bound to their places in the tensor.
void Loader::AddSum(const Piece& piece, absl::string_view bytes) {
  if (options_->replicated_sums == nullptr || piece.param->shard != Shard::kReplicated) return;
  const uint64_t words[2] = {moe::ChecksumOf(bytes.data(), static_cast<int64_t>(bytes.size())),
                             static_cast<uint64_t>(piece.begin - piece.at.entry->begin)};
  const uint64_t sum = moe::ChecksumOf(reinterpret_cast<const char*>(words), sizeof(words));
  absl::MutexLock lock(&mu_);
  (*options_->replicated_sums)[piece.param->name] += sum;
}

absl::Status Loader::CheckValues(const Piece& piece, const TensorView& rows) const {
  const ops::Weight* const weight = piece.param->weight;
  const bool half = weight != nullptr && weight->format() != ops::WeightFormat::kPlain &&
                    ops::HalfScales(weight->format()) && LargestOf(dtype_) > kLargestHalf;
  const char* const holder = half ? ops::WeightFormatName(weight->format()) : DTypeName(dtype_);
  return VisitDType(piece.dtype, [&]<class Elem>() -> absl::Status {
    const int64_t unfit = FindUnfit(rows.data<Elem>(), rows.NumElements(), half ? kLargestHalf : LargestOf(dtype_));
    if (unfit < 0) return absl::OkStatus();
    const int64_t row = piece.param->source_row + piece.row + unfit / piece.param->columns;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: tensor \"%s\": expected finite values that %s can hold, found %g at row %d, column %d",
        piece.at.file->name(), piece.param->name, holder,
        static_cast<double>(static_cast<Acc<Elem>>(rows.data<Elem>()[unfit])), row, unfit % piece.param->columns));
  });
}

// Rows of a weight, or a run of its bias's elements.
absl::Status Loader::PlaceInWeight(const Param& param, int64_t row, const TensorView& rows) {
  const auto place = [&](int64_t first, const TensorView& part) {
    if (param.bias) return param.weight->PackBias(first, part, writer_);
    return uploads_.Pack(param.weight, part.dim(0), [&](ops::Weight* weight) {
      return weight->PackRows(first, part, weight == param.weight ? writer_ : nullptr);
    });
  };
  // As a column where it is a bias.
  const int64_t width = param.bias ? 1 : param.columns, count = rows.NumElements() / width;
  const int64_t first = param.first_row + (param.bias ? row * param.columns : row);
  if (!param.interleaved) return place(first, TensorView(rows.raw(), rows.dtype(), {count, width}));
  const TensorView pairs(rows.raw(), rows.dtype(), {count / 2, 2 * width});
  RETURN_IF_ERROR(place(first / 2, pairs.Columns(0, width)));
  return place(param.weight->n() / 2 + first / 2, pairs.Columns(width, width));
}

absl::Status Loader::PlaceNumbers(const Param& param, int64_t row, int64_t count, const ops::StoredNumbers& from) {
  const int64_t first = param.first_row + row;
  const auto place = [&](ops::Weight* weight) {
    if (!param.interleaved) {
      weight->PackNumbers(first, count, from);
      return absl::OkStatus();
    }
    const int64_t groups = param.columns / ops::ScaleGroup(weight->format());
    weight->PackNumbers(
        first / 2, count / 2,
        {.numbers = from.numbers, .scales = from.scales, .least = from.least, .stride = 2});  // gate, up, gate, up …
    weight->PackNumbers((weight->n() + first) / 2, count / 2,
                        {.numbers = from.numbers + param.columns,
                         .scales = from.scales + groups,
                         .least = from.least == nullptr ? nullptr : from.least + groups,
                         .stride = 2});
    return absl::OkStatus();
  };
  return uploads_.Pack(param.weight, count, place);
}

absl::Status Loader::Place(const Piece& piece, const TensorView& rows) {
  if (piece.param->weight != nullptr) return PlaceInWeight(*piece.param, piece.row, rows);
  const int64_t first_row = piece.param->first_row + piece.row;
  const DType dtype = piece.param->tensor->dtype();
  const int64_t columns = piece.param->columns, row_bytes = columns * DTypeBytes(dtype);
  const auto convert = [&](int64_t first, int64_t count, char* at) {
    VisitDType(piece.dtype, [&]<class From>() {
      VisitDType(dtype, [&]<class To>() {
        const From* from = rows.data<From>() + first * columns;
        To* to = reinterpret_cast<To*>(at);
        for (int64_t i = 0; i < count * columns; ++i) to[i] = static_cast<To>(static_cast<Acc<From>>(from[i]));
      });
    });
  };
  char* const to = static_cast<char*>(piece.param->tensor->view().raw()) + first_row * row_bytes;
  if (writer_ != nullptr) return writer_->Write(to, rows.dim(0), row_bytes, convert);
  convert(0, rows.dim(0), to);
  return absl::OkStatus();
}

void Loader::Report(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  done_bytes_ += bytes;
  const absl::Time now = MonotonicNow();
  if (now >= next_log_) {
    next_log_ = now + kLogEvery;
    const double done_mb = static_cast<double>(done_bytes_) / 1e6;
    LogInfo(absl::StrFormat("loading weights: %.0f of %.0f MB (%.0f MB/s)", done_mb,
                            static_cast<double>(total_bytes_) / 1e6, done_mb / absl::ToDoubleSeconds(now - start_)));
  }
  if (now < next_report_ && done_bytes_ < total_bytes_) return;
  next_report_ = now + kProgressEvery;
  if (options_->progress && !options_->progress(done_bytes_, total_bytes_)) {
    status_.Update(absl::CancelledError(absl::StrCat("loading was stopped after ", done_bytes_, " bytes")));
    stop_ = true;
  }
}

void Loader::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  status_.Update(status);
  stop_ = true;
}

const ModelFamily& FamilyOf(const ModelConfig& config) {
  const ModelFamily* const family = FindFamily(config.model_type);
  SY_CHECK(family != nullptr);
  return *family;
}

// How the quantized matrices are stored; "": there are none.
std::string StoredAs(const ModelConfig& config, const std::vector<Param>& params) {
  if (config.quantization.has_value()) return config.reading();
  std::set<std::string> types;  // of GGUF
  for (const Param& param : params) {
    if (param.matrix != nullptr) types.insert(param.matrix->location().entry->dtype);
  }
  return absl::StrJoin(types, ", ");
}

absl::Status RunLoader(const checkpoint::Checkpoint& checkpoint, const std::vector<Param>& params, LoadOptions* options,
                       DeviceWriter* writer) {
  options->num_threads = std::clamp<int>(options->num_threads, 1, static_cast<int>(kStagingBytes / kChunkBytes));
  Loader loader(options->dtype, options, writer);
  loader.AddPieces(checkpoint, params);
  return loader.Run();
}

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config,
                                         LoadOptions options) {
  ASSIGN_OR_RETURN(ModelWeights weights,
                   AllocateWeights(config, {options.dtype, options.format}, options.residents, options.device,
                                   {.none = !options.experts}, /*in_arena=*/true));
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceWriter> writer, DeviceWriter::Create(options.device));
  ASSIGN_OR_RETURN(std::vector<Param> params, BuildParams(config, FamilyOf(config), checkpoint, &weights));
  if (options.adapter != nullptr)
    RETURN_IF_ERROR(MergeAdapter(config, *options.adapter, checkpoint, &params, /*some=*/true));
  if (const std::string stored = StoredAs(config, params); !stored.empty()) {
    const bool kept = std::any_of(params.begin(), params.end(), KeepsNumbers);
    LogInfo("weights are stored as ", stored, kept ? "; they are held as " : "; they are decoded to ",
            ops::ToString({options.dtype, options.format}));
  }
  // Unused tensors may be harmless (an untied copy of a tied head, buffers of old versions) or a sign of a wrong
  // config.
  const std::vector<std::string> unused = UnusedTensors(checkpoint, params);
  if (!unused.empty()) LogWarn(UnusedText(unused, config));
  RETURN_IF_ERROR(RunLoader(checkpoint, params, &options, writer.get()));
  if (writer != nullptr) RETURN_IF_ERROR(writer->Finish());
  return weights;
}

absl::Status LoadExperts(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config, LoadOptions options,
                         std::function<char*(int layer, int32_t expert)> place) {
  // Allocates the other weights, too, for the same table, but never touches them.
  ASSIGN_OR_RETURN(ModelWeights weights,
                   AllocateWeights(config, {options.dtype, options.format}, options.residents, Device::Cpu(),
                                   {.place = std::move(place), .packing = options.device.kind}));
  ASSIGN_OR_RETURN(std::vector<Param> params, BuildParams(config, FamilyOf(config), checkpoint, &weights));
  std::erase_if(params, [](const Param& param) {
    return param.shard != Shard::kExpert || param.weight == nullptr || param.weight->bytes() == 0;
  });
  if (options.adapter != nullptr)
    RETURN_IF_ERROR(MergeAdapter(config, *options.adapter, checkpoint, &params, /*some=*/true));
  return RunLoader(checkpoint, params, &options, nullptr);
}

absl::Status LoadParams(const checkpoint::Checkpoint& checkpoint, const std::vector<Param>& params,
                        LoadOptions options) {
  return RunLoader(checkpoint, params, &options, nullptr);
}

}  // namespace switchyard::model
