#include "tests/bench/gpu/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/gpu/device_moment_cuda.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_queue.h"

namespace switchyard {
namespace {

constexpr int64_t kRotatedBytes = int64_t{3} * 64 << 20;  // three times an L2 cache
constexpr double kGraphSeconds = 2e-3;                    // a replay lasts about so long
constexpr int kMaxPasses = 64;

int Threads(bool tiny) { return tiny ? 1 : std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

}  // namespace

void Difference::Add(double got, double want) {
  difference_ += (got - want) * (got - want);
  magnitude_ += want * want;
}

void Difference::AddRow(const TensorView& got, const TensorView& want, int64_t row) {
  SY_CHECK_EQ(got.dim(1), want.dim(1));
  for (int64_t i = 0; i < want.dim(1); ++i) Add(ValueAt(got, row, i), ValueAt(want, row, i));
}

double Difference::relative() const { return std::sqrt(difference_ / magnitude_); }

absl::Status Difference::Check(const std::string& what, double limit) const {
  if (relative() <= limit) return absl::OkStatus();  // false for a NaN
  return absl::InternalError(
      absl::StrCat(what, ": differs from the reference by ", relative(), " of its norm, limit ", limit));
}

double ValueAt(const TensorView& matrix, int64_t row, int64_t column) {
  return VisitDType(matrix.dtype(), [&]<class Elem>() {
    return static_cast<double>(static_cast<Acc<Elem>>(matrix.row<Elem>(row)[column]));
  });
}

std::vector<int64_t> SampledRows(int64_t rows, int64_t count) {
  std::vector<int64_t> sampled;
  count = std::min(rows, count);
  for (int64_t i = 0; i < count; ++i) sampled.push_back(count == 1 ? 0 : i * (rows - 1) / (count - 1));
  return sampled;
}

// Not deterministic: dense products by cuBLASLt, as the worker runs them without --deterministic.
Bench::Bench(const BenchOptions& options, int64_t pool_elements)
    : options_(options),
      end_(absl::Now() + options.limit),
      stream_(Threads(options.tiny), 0, {.deterministic = false}),
      cpu_pool_(Threads(options.tiny), /*spin=*/false),
      cpu_(Stream::OnCpu(&cpu_pool_)),
      pool_(DType::kBf16, {pool_elements}) {
  auto* const numbers = pool_.data<Bf16>();
  for (int64_t i = 0; i < pool_elements; ++i) {
    const auto bits = static_cast<int32_t>(SplitMix(static_cast<uint64_t>(i)) >> 40);  // 24 bits
    numbers[i] = Bf16(static_cast<float>(bits - (1 << 23)) / static_cast<float>(1 << 25));
  }
}

bool Bench::Wants(const std::string& part) const {
  return options_.only.empty() || std::find(options_.only.begin(), options_.only.end(), part) != options_.only.end();
}

absl::Status Bench::Measure(const std::string& what, absl::FunctionRef<absl::Status()> measure) {
  if (absl::Now() >= end_) {
    Emit({{"kind", "left_out"}, {"what", what}});
    return absl::OkStatus();
  }
  absl::Status status = measure();
  if (status.ok() && !options_.spoil.empty() && absl::StrContains(what, options_.spoil)) {
    status = absl::InternalError("spoiled");
  }
  if (status.ok()) return status;
  const bool wrong = !absl::IsResourceExhausted(status);
  num_wrong_ += wrong ? 1 : 0;
  Emit({{"kind", wrong ? "wrong" : "skipped"}, {"what", what}, {"reason", std::string(status.message())}});
  return Synchronize(stream());
}

int Bench::Sets(int64_t bytes_of_one) const {
  if (options_.tiny) return 2;
  return static_cast<int>(std::clamp<int64_t>((kRotatedBytes + bytes_of_one - 1) / bytes_of_one, 2, 32));
}

TensorView Bench::Window(uint64_t key, int64_t rows, int64_t columns) const {
  const int64_t room = pool_.dim(0) - rows * columns;
  SY_CHECK_GE(room, 0);
  const auto offset = static_cast<int64_t>(SplitMix(key + 0x5eed) % static_cast<uint64_t>(room + 1));
  return TensorView(pool_.data<Bf16>() + offset, DType::kBf16, {rows, columns});
}

Tensor Bench::OnHost(uint64_t key, DType dtype, int64_t rows, int64_t columns) const {
  const TensorView window = Window(key, rows, columns);
  Tensor tensor(dtype, {rows, columns});
  VisitDType(dtype, [&]<class Elem>() {
    const Bf16* const from = window.data<Bf16>();
    for (int64_t i = 0; i < rows * columns; ++i) {
      tensor.data<Elem>()[i] = Elem(static_cast<Acc<Elem>>(static_cast<float>(from[i])));
    }
  });
  return tensor;
}

absl::StatusOr<Tensor> Bench::OnDevice(uint64_t key, DType dtype, int64_t rows, int64_t columns) const {
  return CopyToDevice(stream(), OnHost(key, dtype, rows, columns));
}

absl::StatusOr<ops::Weight> Bench::WeightOf(uint64_t key, const ops::WeightDesc& desc) {
  if (writer_ == nullptr) {
    ASSIGN_OR_RETURN(writer_, DeviceWriter::Create(stream().device()));
  }
  ops::Weight weight;
  ASSIGN_OR_RETURN(weight, ops::Weight::Allocate(desc, stream().device()));
  if (desc.format == ops::WeightFormat::kPlain) {
    RETURN_IF_ERROR(weight.PackRows(0, Window(key, desc.n, desc.k), writer_.get()));
  } else {
    ops::Weight host;
    ASSIGN_OR_RETURN(host, ops::PackWeight(cpu(), desc, Window(key, desc.n, desc.k)));
    RETURN_IF_ERROR(ops::CopyPanels(host, &weight, writer_.get()));
  }
  RETURN_IF_ERROR(writer_->Finish());
  return weight;
}

absl::Status Bench::Poison(const TensorView& view) const {
  SY_CHECK(view.contiguous());
  return stream().queue()->Fill(view.raw(), 0xFF, view.NumElements() * DTypeBytes(view.dtype()));
}

absl::StatusOr<Timing> Bench::Time(int num_sets, absl::FunctionRef<absl::Status(int set)> call) const {
  const auto pass = [&]() -> absl::Status {
    for (int set = 0; set < num_sets; ++set) RETURN_IF_ERROR(call(set));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(pass());
  DeviceMoment begin, end;
  RETURN_IF_ERROR(begin.Record(stream()));
  RETURN_IF_ERROR(pass());
  RETURN_IF_ERROR(end.Record(stream()));
  double seconds;
  ASSIGN_OR_RETURN(seconds, SecondsBetween(begin, end));
  const int passes = options_.tiny ? 1 : std::clamp(static_cast<int>(kGraphSeconds / seconds), 1, kMaxPasses);

  RETURN_IF_ERROR(stream().queue()->BeginRecording());
  absl::Status recorded;
  for (int i = 0; i < passes && recorded.ok(); ++i) recorded = pass();
  absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = stream().queue()->EndRecording();
  RETURN_IF_ERROR(recorded);
  RETURN_IF_ERROR(graph.status());
  RETURN_IF_ERROR(stream().queue()->Run(graph->get()));
  std::vector<double> times;
  const int repeats = options_.tiny ? 1 : options_.quick ? 5 : 21;
  for (int i = 0; i < repeats; ++i) {
    RETURN_IF_ERROR(begin.Record(stream()));
    RETURN_IF_ERROR(stream().queue()->Run(graph->get()));
    RETURN_IF_ERROR(end.Record(stream()));
    ASSIGN_OR_RETURN(seconds, SecondsBetween(begin, end));
    times.push_back(seconds / (passes * num_sets));
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return Timing{.seconds = median, .spread = (times.back() - times.front()) / median};
}

void Bench::Emit(nlohmann::json line) const {
  line["tiny"] = options_.tiny;
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void Bench::Emit(nlohmann::json line, const Timing& timing) const {
  line["seconds"] = SecondsOrNull(timing.seconds);
  line["spread"] = SecondsOrNull(timing.spread);
  Emit(std::move(line));
}

nlohmann::json Bench::SecondsOrNull(double seconds) const {
  return options_.tiny ? nlohmann::json(nullptr) : nlohmann::json(seconds);
}

}  // namespace switchyard
