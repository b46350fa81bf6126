// Shared by the GPU benchmarks: the device, its stream, random numbers, timing, checks, and lines of JSON.
//
// Times are medians of replayed graphs between two events, so that neither launches by the host nor a first run count.
// `tiny`: shapes so small that the CUDA emulation runs them; everything is done and checked, but no time is printed.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/devices/test_device.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_writer.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

struct BenchOptions {
  bool tiny = false;
  bool quick = false;                               // few repeats
  std::vector<std::string> only;                    // parts to run; empty: all
  absl::Duration limit = absl::InfiniteDuration();  // what would begin later is left out
  std::string spoil;                                // measurements whose name has this count as wrong: for tests
};

struct Timing {
  double seconds = 0;  // of one call, median
  double spread = 0;   // (slowest - fastest) / median of the repeats
};

// ‖got - want‖ / ‖want‖ of what was added.
class Difference {
 public:
  void Add(double got, double want);
  // All of a row of any floating dtype; REQUIRES: on the CPU.
  void AddRow(const TensorView& got, const TensorView& want, int64_t row);
  double relative() const;
  // Internal "WHAT: differs …" when it is more than `limit`, or no number.
  absl::Status Check(const std::string& what, double limit) const;

 private:
  double difference_ = 0, magnitude_ = 0;
};
// The tolerance of results in bf16 with sums in fp32.
inline constexpr double kBf16Limit = 1e-2;

double ValueAt(const TensorView& matrix, int64_t row, int64_t column);
// First, last and some between, at most `count`.
std::vector<int64_t> SampledRows(int64_t rows, int64_t count);

class Bench {
 public:
  Bench(const BenchOptions& options, int64_t pool_elements);

  const BenchOptions& options() const { return options_; }
  bool Wants(const std::string& part) const;
  int64_t Pick(int64_t full, int64_t tiny) const { return options_.tiny ? tiny : full; }
  const Stream& stream() const { return stream_.get(); }
  // Ops on the CPU, for checks, run on this.
  const Stream& cpu() const { return cpu_; }

  // One measurement.  A failure is a line "wrong" and is counted, too little memory a line "skipped", too little time
  // one "left_out": then the next one goes on.  Returns an error only where the device keeps it, so that nothing more
  // can run.
  absl::Status Measure(const std::string& what, absl::FunctionRef<absl::Status()> measure);
  int64_t num_wrong() const { return num_wrong_; }

  // How many sets of inputs of this size are to take turns, so that none is in the L2 cache when its turn comes.
  int Sets(int64_t bytes_of_one) const;

  // Random numbers in [-1/4, 1/4): a window of a pool of bf16 on the host, another one for every key.
  // REQUIRES: it is not more than the pool has.
  TensorView Window(uint64_t key, int64_t rows, int64_t columns) const;
  // The same as `dtype`, or on the device.
  Tensor OnHost(uint64_t key, DType dtype, int64_t rows, int64_t columns) const;
  absl::StatusOr<Tensor> OnDevice(uint64_t key, DType dtype, int64_t rows, int64_t columns) const;
  absl::StatusOr<ops::Weight> WeightOf(uint64_t key, const ops::WeightDesc& desc);
  // Bytes of 0xFF (a NaN) everywhere, so that what an op does not write is seen.
  absl::Status Poison(const TensorView& view) const;

  // call(set) enqueues the work to be timed, with set in [0, num_sets): the first calls may allocate, later ones not.
  absl::StatusOr<Timing> Time(int num_sets, absl::FunctionRef<absl::Status(int set)> call) const;

  // Prints a line of JSON.  With a timing: "seconds" and "spread", null when tiny.
  void Emit(nlohmann::json line) const;
  void Emit(nlohmann::json line, const Timing& timing) const;
  // null when tiny: for further times.
  nlohmann::json SecondsOrNull(double seconds) const;

 private:
  const BenchOptions options_;
  const absl::Time end_;
  int64_t num_wrong_ = 0;
  TestStream stream_;
  ThreadPool cpu_pool_;
  const Stream cpu_;
  Tensor pool_;  // [n] bf16
  std::unique_ptr<DeviceWriter> writer_;
};

}  // namespace switchyard
