// Weight: a matrix [n, k] in the form that the matrix products read: packed once, at load, from row-major checkpoint
// rows.
//
// On the CPU, the same for every instruction set: panels of 32 output columns, each walked along k in one contiguous
// stream.
//   bf16               [panel][k/2][32][2]   pairs of k side by side (vdpbf16ps, AMX tiles); k padded to 32 with zeros
//   fp16, fp32, fp64   [panel][k][32]
//   of few bits        [panel][k/32] blocks of scales and numbers (weight_format.h, quantize_panel.h); k padded to 32
// Columns past n are zeros.  With kGatedPanels, rows [0, n/2) are a gate and rows [n/2, n) its up projection; their
// panels alternate (gate 0, up 0, gate 1, …) so that one task reads both for SwiGLU (expert_ffn.h).
//
// With a bias: behind its panels [n] numbers of its dtype, by row of [n, k], which products add to their outputs before
// any activation.  So it goes wherever the matrix goes: into slots, copies and files.
//
// On a device: of few bits, the same panels; plain, the rows as they are, each padded with zeros to a multiple of 16
// bytes, gated: the gate's, then up's.  A bias lies behind them, too.
//
// Thread-safety: PackRows of disjoint rows may run at once; reading is safe once packing is over.
// A Weight owns its memory (huge pages where the system gives them) unless made by Over().  Movable, not copyable.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/ops/gemm/quantized/weight_format.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_writer.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

inline constexpr int64_t kPanelColumns = 32;

enum class WeightLayout : uint8_t { kPanels, kGatedPanels };

struct WeightDesc {
  int64_t n = 0;               // outputs (of gate and up together)
  int64_t k = 0;               // inputs
  DType dtype = DType::kBf16;  // of x and y; and of the numbers, if plain
  WeightLayout layout = WeightLayout::kPanels;
  WeightFormat format = WeightFormat::kPlain;  // others not of fp64
  bool bias = false;

  std::string ToString() const;  // "bf16 [2048, 1024] gated", "bf16 int4 [2048, 1024] with bias"
};

// Bytes of the packed form, for memory plans.  REQUIRES: a valid desc.
int64_t PackedBytes(const WeightDesc& desc, DeviceKind device = DeviceKind::kCpu);

class Weight {
 public:
  Weight() = default;
  // Allocates; contents are undefined (on the CPU padding and a bias are zero) until PackRows has filled every row, and
  // PackBias the bias.
  // REQUIRES: n, k >= 1; a floating dtype; kGatedPanels only with even n.
  explicit Weight(const WeightDesc& desc, Device device = Device::Cpu());
  // The packed form in borrowed memory that outlives this: 64-byte aligned, PackedBytes(desc, device.kind) long.  With
  // `packed` its contents are valid, else as by the constructor.
  static Weight Over(const WeightDesc& desc, void* memory, bool packed, Device device = Device::Cpu());
  // Errors: ResourceExhausted where the constructor would abort.
  static absl::StatusOr<Weight> Allocate(const WeightDesc& desc, Device device);
  Weight(Weight&& other) noexcept { *this = std::move(other); }
  Weight& operator=(Weight&& other) noexcept;

  // Rows [first_row, first_row + rows.dim(0)) of [n, k] from row-major `rows` [rows, k] of any floating dtype,
  // converted to the weight's (rounded to nearest even), or quantized, each row by itself; then they must be finite.
  // Single-threaded. Errors (InvalidArgument): shape, dtype or
  // range that do not fit.  For a plain weight on a device `writer` copies them; they are there after its Finish.
  // Without a writer its memory is the host's, in a device's form, to be copied from later (packed_expert.h).  Rows of
  // few bits are packed in the host's memory alone (CopyPanels).
  absl::Status PackRows(int64_t first_row, const TensorView& rows, DeviceWriter* writer = nullptr);
  // The same of rows that are quantized as format() says already.
  // REQUIRES: in the host's memory, of few bits, k is a multiple of 32, the rows are the weight's.
  void PackNumbers(int64_t first_row, int64_t rows, const StoredNumbers& from);
  // Elements [first_row, first_row + values.dim(0)) of the bias from a column [rows, 1] of any floating dtype.
  // REQUIRES: with a bias.  Errors, and the writer: as PackRows'.
  absl::Status PackBias(int64_t first_row, const TensorView& values, DeviceWriter* writer = nullptr);
  // The same rows back, in the weight's dtype.  REQUIRES: on the CPU.
  absl::Status UnpackRows(int64_t first_row, const TensorView& rows) const;

  const WeightDesc& desc() const { return desc_; }
  int64_t n() const { return desc_.n; }
  int64_t k() const { return desc_.k; }
  DType dtype() const { return desc_.dtype; }
  WeightFormat format() const { return desc_.format; }
  bool gated() const { return desc_.layout == WeightLayout::kGatedPanels; }
  // [n] of its dtype; raw() == nullptr: none.
  TensorView bias() const;
  bool empty() const { return data_ == nullptr; }
  Device device() const { return device_; }
  int64_t bytes() const { return empty() ? 0 : PackedBytes(desc_, device().kind); }

  // For kernels and for copies to other places.
  const void* data() const { return data_; }
  void* mutable_data() { return data_; }  // for callers that pack panels themselves (backward/transposed_weight.h)
  int64_t padded_k() const;               // on a device: elements from one row to the next
  // All rows, row-major.  REQUIRES: on a device, plain.
  TensorView rows() const;
  // On the CPU:
  int64_t panel_bytes() const;  // distance from one panel to the next
  int64_t num_panels() const;

 private:
  friend absl::StatusOr<Weight> PackWeight(const Stream&, const WeightDesc&, const TensorView&);
  friend absl::Status PackAgain(const Stream& stream, const TensorView& rows, Weight* weight);

  // Of few bits.
  void Quantize(int64_t first_row, const TensorView& rows);
  void Dequantize(int64_t first_row, const TensorView& rows) const;
  // In a device's form.
  absl::Status PackOnDevice(int64_t first_row, const TensorView& rows, DeviceWriter* writer);
  void ZeroPadding();
  absl::Status CheckRows(const char* what, int64_t first_row, const TensorView& rows) const;
  // The place of a row of [n, k]: its column in its panel, the panel, and, if plain, the column's first element.
  int64_t ColumnOf(int64_t row) const;
  char* PanelOf(int64_t row) const;
  char* ColumnAt(int64_t row) const;

  WeightDesc desc_;
  Device device_ = Device::Cpu();
  Buffer buffer_;  // empty unless it owns its memory
  void* data_ = nullptr;
};

// Allocates and packs a whole matrix on the stream's threads.  Errors (InvalidArgument): rows is not [n, k] floating.
absl::StatusOr<Weight> PackWeight(const Stream& stream, const WeightDesc& desc, const TensorView& rows);

// Copies the panels, not the bias, of a weight of few bits to one on a device; they are there after the writer's
// Finish. REQUIRES: the same n, k, layout and format.
absl::Status CopyPanels(const Weight& host, Weight* on_device, DeviceWriter* writer);

// Packs all rows of a weight anew, in place, on the stream's threads.  No one may read it meanwhile.  CPU only.
// Errors (InvalidArgument): rows is not [n, k] floating.
absl::Status PackAgain(const Stream& stream, const TensorView& rows, Weight* weight);

}  // namespace switchyard::ops
