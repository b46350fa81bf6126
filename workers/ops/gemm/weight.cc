#include "workers/ops/gemm/weight.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm/quantized/quantize_panel.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kPairedKMultiple = 32;  // a tile's depth

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool Plain(const WeightDesc& desc) { return desc.format == WeightFormat::kPlain; }
bool Paired(DType dtype) { return dtype == DType::kBf16; }
int64_t PaddedK(const WeightDesc& desc) {
  if (!Plain(desc)) return RoundUp(desc.k, kQuantGroup);
  return Paired(desc.dtype) ? RoundUp(desc.k, kPairedKMultiple) : desc.k;
}
// On a device: rows begin where 16 bytes can be loaded at once.
int64_t RowElements(const WeightDesc& desc) { return RoundUp(desc.k, 16 / DTypeBytes(desc.dtype)); }
int64_t PanelBytes(const WeightDesc& desc) {
  if (!Plain(desc)) return PaddedK(desc) / kQuantGroup * QuantBlockBytes(desc.format);
  return PaddedK(desc) * kPanelColumns * DTypeBytes(desc.dtype);
}
int64_t NumPanels(const WeightDesc& desc) {
  const int64_t parts = desc.layout == WeightLayout::kGatedPanels ? 2 : 1;
  return parts * (RoundUp(desc.n / parts, kPanelColumns) / kPanelColumns);
}
int64_t BiasBytes(const WeightDesc& desc) { return desc.bias ? RoundUp(desc.n * DTypeBytes(desc.dtype), 64) : 0; }

// Elements from one k to the next of a column: they are (k / group) * group * 32 + k % group away from the column's
// start.
int64_t Group(DType dtype) { return Paired(dtype) ? 2 : 1; }

template <class To, class From>
To Convert(From from) {
  if constexpr (std::is_same_v<To, From>) {
    return from;
  } else {
    return To(static_cast<float>(from));
  }
}

// Columns [0, count) of one panel, k in [k_begin, k_end), from rows `stride` apart.  k_begin is even.
template <class To, class From>
void PackBlock(const From* rows, int64_t stride, int64_t count, int64_t k_begin, int64_t k_end, To* column) {
  constexpr int64_t kGroup = std::is_same_v<To, Bf16> ? 2 : 1;
  for (int64_t c = 0; c < count; ++c) {
    const From* from = rows + c * stride;
    To* to = column + c * kGroup;
    for (int64_t k = k_begin; k < k_end; ++k) {
      to[(k / kGroup) * kGroup * kPanelColumns + k % kGroup] = Convert<To>(from[k]);
    }
  }
}

template <class Elem>
void UnpackColumn(const Elem* column, int64_t k, Elem* row) {
  constexpr int64_t kGroup = std::is_same_v<Elem, Bf16> ? 2 : 1;
  for (int64_t i = 0; i < k; ++i) row[i] = column[(i / kGroup) * kGroup * kPanelColumns + i % kGroup];
}

}  // namespace

std::string WeightDesc::ToString() const {
  const char* const bits = format == WeightFormat::kPlain ? "" : WeightFormatName(format);
  return absl::StrCat(DTypeName(dtype), *bits == 0 ? "" : " ", bits, " [", n, ", ", k, "]",
                      layout == WeightLayout::kGatedPanels ? " gated" : "", bias ? " with bias" : "");
}

int64_t PackedBytes(const WeightDesc& desc, DeviceKind device) {
  if (device != DeviceKind::kCpu && Plain(desc))
    return desc.n * RowElements(desc) * DTypeBytes(desc.dtype) + BiasBytes(desc);
  return NumPanels(desc) * PanelBytes(desc) + BiasBytes(desc);
}

Weight::Weight(const WeightDesc& desc, Device device) {
  absl::StatusOr<Weight> weight = Allocate(desc, device);
  SY_CHECK_OK(weight.status());
  *this = *std::move(weight);
}

absl::StatusOr<Weight> Weight::Allocate(const WeightDesc& desc, Device device) {
  SY_CHECK(IsFloating(desc.dtype));
  SY_CHECK_GE(desc.n, 1);
  SY_CHECK_GE(desc.k, 1);
  SY_CHECK(desc.layout == WeightLayout::kPanels || desc.n % 2 == 0);
  SY_CHECK(Plain(desc) || desc.dtype != DType::kF64);
  Weight weight;
  weight.desc_ = desc;
  weight.device_ = device;
  ASSIGN_OR_RETURN(weight.buffer_, Buffer::AllocateBesideOthers(PackedBytes(desc, device.kind), device));
  weight.data_ = weight.buffer_.data();
  if (device.is_cpu()) weight.ZeroPadding();  // on a device PackRows writes it for plain rows
  return weight;
}

Weight Weight::Over(const WeightDesc& desc, void* memory, bool packed, Device device) {
  SY_CHECK(memory != nullptr);
  SY_CHECK_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
  Weight weight;
  weight.desc_ = desc;
  weight.device_ = device;
  weight.data_ = memory;
  if (!packed && device.is_cpu()) weight.ZeroPadding();
  return weight;
}

Weight& Weight::operator=(Weight&& other) noexcept {
  desc_ = std::exchange(other.desc_, WeightDesc());
  device_ = std::exchange(other.device_, Device::Cpu());
  buffer_ = std::move(other.buffer_);
  data_ = std::exchange(other.data_, nullptr);
  return *this;
}

int64_t Weight::padded_k() const { return device().is_cpu() ? PaddedK(desc_) : RowElements(desc_); }

TensorView Weight::rows() const {
  SY_CHECK(!device().is_cpu() && Plain(desc_));
  return TensorView(data_, desc_.dtype, {desc_.n, RowElements(desc_)}, device()).Columns(0, desc_.k);
}

int64_t Weight::panel_bytes() const { return PanelBytes(desc_); }
int64_t Weight::num_panels() const { return NumPanels(desc_); }

TensorView Weight::bias() const {
  if (!desc_.bias || empty()) return {};
  const int64_t offset = PackedBytes(desc_, device().kind) - BiasBytes(desc_);
  return {static_cast<char*>(data_) + offset, desc_.dtype, {desc_.n}, device()};
}

int64_t Weight::ColumnOf(int64_t row) const { return (gated() ? row % (desc_.n / 2) : row) % kPanelColumns; }

char* Weight::PanelOf(int64_t row) const {
  const int64_t half = desc_.n / 2;
  const int64_t panel = gated() ? 2 * (row % half / kPanelColumns) + row / half : row / kPanelColumns;
  return static_cast<char*>(data_) + panel * panel_bytes();
}

char* Weight::ColumnAt(int64_t row) const {
  return PanelOf(row) + ColumnOf(row) * Group(dtype()) * DTypeBytes(dtype());
}

// Zeroes rows past n and products past k.  The pages of a whole panel are touched only if it is the last of its part.
void Weight::ZeroPadding() {
  const int64_t parts = gated() ? 2 : 1;
  const int64_t columns = desc_.n / parts;
  if (desc_.bias) std::memset(bias().raw(), 0, BiasBytes(desc_));
  if (columns % kPanelColumns != 0) {
    for (int64_t p = num_panels() - parts; p < num_panels(); ++p) {
      std::memset(static_cast<char*>(data_) + p * panel_bytes(), 0, panel_bytes());
    }
  }
  if (!Plain(desc_)) return;  // scales of 0 are enough; Quantize pads k
  const int64_t full_k = desc_.k / Group(dtype()) * Group(dtype());
  if (full_k == padded_k()) return;
  const int64_t row_bytes = kPanelColumns * DTypeBytes(dtype());
  for (int64_t p = 0; p < num_panels(); ++p) {
    std::memset(static_cast<char*>(data_) + p * panel_bytes() + full_k * row_bytes, 0,
                (padded_k() - full_k) * row_bytes);
  }
}

absl::Status Weight::CheckRows(const char* what, int64_t first_row, const TensorView& rows) const {
  if (rows.rank() != 2 || rows.dim(1) != desc_.k || !IsFloating(rows.dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": rows must be floating [*, ", desc_.k, "], are ", rows.ToString()));
  }
  if (first_row < 0 || first_row + rows.dim(0) > desc_.n) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": rows [", first_row, ", ", first_row + rows.dim(0),
                                                   ") are not all in ", desc_.ToString()));
  }
  return absl::OkStatus();
}

void Weight::Quantize(int64_t first_row, const TensorView& rows) {
  std::vector<float> values(static_cast<size_t>(desc_.k));
  VisitDType(rows.dtype(), [&]<class From>() {
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      const From* from = rows.row<From>(i);
      for (int64_t k = 0; k < desc_.k; ++k) values[k] = static_cast<float>(from[k]);
      QuantizeColumn(desc_.format, values.data(), desc_.k, ColumnOf(first_row + i), PanelOf(first_row + i));
    }
  });
}

void Weight::PackNumbers(int64_t first_row, int64_t rows, const StoredNumbers& from) {
  SY_CHECK(!Plain(desc_) && desc_.k % kQuantGroup == 0 && first_row >= 0 && first_row + rows <= desc_.n);
  const int64_t groups = desc_.k / ScaleGroup(desc_.format), end = first_row + rows;
  for (int64_t row = first_row; row < end;) {
    int64_t count = std::min(kPanelColumns - ColumnOf(row), end - row);
    if (gated() && row < desc_.n / 2) count = std::min(count, desc_.n / 2 - row);
    const int64_t at = (row - first_row) * from.stride;
    StoreColumns(desc_.format,
                 {.numbers = from.numbers + at * desc_.k,
                  .scales = from.scales + at * groups,
                  .least = from.least == nullptr ? nullptr : from.least + at * groups,
                  .stride = from.stride},
                 count, desc_.k, ColumnOf(row), PanelOf(row));
    row += count;
  }
}

void Weight::Dequantize(int64_t first_row, const TensorView& rows) const {
  std::vector<float> values(static_cast<size_t>(desc_.k));
  VisitDType(rows.dtype(), [&]<class To>() {
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      DequantizeColumn(desc_.format, PanelOf(first_row + i), ColumnOf(first_row + i), desc_.k, values.data());
      To* const to = rows.row<To>(i);
      for (int64_t k = 0; k < desc_.k; ++k) to[k] = Convert<To>(values[k]);
    }
  });
}

absl::Status Weight::PackOnDevice(int64_t first_row, const TensorView& rows, DeviceWriter* writer) {
  const int64_t row_bytes = padded_k() * DTypeBytes(dtype());
  const auto fill = [&](int64_t first, int64_t count, char* to) {
    VisitDType(dtype(), [&]<class To>() {
      VisitDType(rows.dtype(), [&]<class From>() {
        for (int64_t i = 0; i < count; ++i) {
          const From* from = rows.row<From>(first + i);
          To* row = reinterpret_cast<To*>(to + i * row_bytes);
          for (int64_t k = 0; k < desc_.k; ++k) row[k] = Convert<To>(from[k]);
          std::fill(row + desc_.k, row + padded_k(), To());
        }
      });
    });
  };
  char* const at = static_cast<char*>(data_) + first_row * row_bytes;
  if (writer != nullptr) return writer->Write(at, rows.dim(0), row_bytes, fill);
  fill(0, rows.dim(0), at);
  return absl::OkStatus();
}

absl::Status Weight::PackRows(int64_t first_row, const TensorView& rows, DeviceWriter* writer) {
  RETURN_IF_ERROR(CheckRows("PackRows", first_row, rows));
  if (!device().is_cpu() && Plain(desc_)) return PackOnDevice(first_row, rows, writer);
  if (!Plain(desc_)) {
    SY_CHECK(writer == nullptr);
    Quantize(first_row, rows);
    return absl::OkStatus();
  }
  const int64_t end = first_row + rows.dim(0);
  // So many k at a time that the block of the panel (4 KB or so) stays in the first cache while its columns are filled.
  constexpr int64_t kBlock = 32;
  VisitDType(dtype(), [&]<class To>() {
    VisitDType(rows.dtype(), [&]<class From>() {
      int64_t row = first_row;
      while (row < end) {
        int64_t count = std::min(kPanelColumns - ColumnOf(row), end - row);
        if (gated() && row < desc_.n / 2) count = std::min(count, desc_.n / 2 - row);
        const From* from = rows.row<From>(row - first_row);
        To* column = reinterpret_cast<To*>(ColumnAt(row));
        for (int64_t k = 0; k < desc_.k; k += kBlock) {
          PackBlock<To>(from, rows.row_stride(), count, k, std::min(k + kBlock, desc_.k), column);
        }
        row += count;
      }
    });
  });
  return absl::OkStatus();
}

absl::Status Weight::PackBias(int64_t first_row, const TensorView& values, DeviceWriter* writer) {
  SY_CHECK(desc_.bias);
  if (values.rank() != 2 || values.dim(1) != 1 || !IsFloating(values.dtype()) || first_row < 0 ||
      first_row + values.dim(0) > desc_.n) {
    return absl::InvalidArgumentError(
        absl::StrCat("PackBias: elements from ", first_row, " on of ", desc_.ToString(), " are ", values.ToString()));
  }
  const auto fill = [&](int64_t first, int64_t count, char* at) {
    VisitDType(dtype(), [&]<class To>() {
      VisitDType(values.dtype(), [&]<class From>() {
        To* const to = reinterpret_cast<To*>(at);
        for (int64_t i = 0; i < count; ++i) to[i] = Convert<To>(*values.row<From>(first + i));
      });
    });
  };
  char* const at = static_cast<char*>(bias().raw()) + first_row * DTypeBytes(dtype());
  if (writer != nullptr) return writer->Write(at, values.dim(0), DTypeBytes(dtype()), fill);
  fill(0, values.dim(0), at);
  return absl::OkStatus();
}

absl::Status Weight::UnpackRows(int64_t first_row, const TensorView& rows) const {
  SY_CHECK(device().is_cpu());
  RETURN_IF_ERROR(CheckRows("UnpackRows", first_row, rows));
  if (rows.dtype() != dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("UnpackRows: rows must be ", DTypeName(dtype()), ", are ", rows.ToString()));
  }
  if (!Plain(desc_)) {
    Dequantize(first_row, rows);
    return absl::OkStatus();
  }
  VisitDType(dtype(), [&]<class Elem>() {
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      UnpackColumn(reinterpret_cast<const Elem*>(ColumnAt(first_row + i)), desc_.k, rows.row<Elem>(i));
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<Weight> PackWeight(const Stream& stream, const WeightDesc& desc, const TensorView& rows) {
  if (desc.n < 1 || desc.k < 1 || !IsFloating(desc.dtype) ||
      (desc.layout == WeightLayout::kGatedPanels && desc.n % 2 != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("PackWeight: cannot pack ", desc.ToString()));
  }
  if (rows.rank() != 2 || rows.dim(0) != desc.n) {
    return absl::InvalidArgumentError(absl::StrCat("PackWeight: ", rows.ToString(), " is not ", desc.ToString()));
  }
  ASSIGN_OR_RETURN(Weight weight, Weight::Allocate(desc, stream.device()));
  RETURN_IF_ERROR(weight.CheckRows("PackWeight", 0, rows));
  if (!stream.device().is_cpu()) {
    ASSIGN_OR_RETURN(const std::unique_ptr<DeviceWriter> writer, DeviceWriter::Create(stream.device()));
    if (Plain(desc)) {
      RETURN_IF_ERROR(weight.PackRows(0, rows, writer.get()));
    } else {
      ASSIGN_OR_RETURN(Weight host, Weight::Allocate(desc, Device::Cpu()));
      RETURN_IF_ERROR(host.PackRows(0, rows));
      RETURN_IF_ERROR(CopyPanels(host, &weight, writer.get()));
    }
    RETURN_IF_ERROR(writer->Finish());
    return weight;
  }
  RETURN_IF_ERROR(PackAgain(stream, rows, &weight));
  return weight;
}

absl::Status CopyPanels(const Weight& host, Weight* on_device, DeviceWriter* writer) {
  SY_CHECK(host.n() == on_device->n() && host.k() == on_device->k() && host.gated() == on_device->gated() &&
           host.format() == on_device->format() && !Plain(host.desc()));
  const char* const from = static_cast<const char*>(host.data());
  constexpr int64_t kBytes = 64;  // of which panels are multiples
  return writer->Write(on_device->mutable_data(), host.num_panels() * host.panel_bytes() / kBytes, kBytes,
                       [&](int64_t first, int64_t count, char* at) {
                         std::memcpy(at, from + first * kBytes, static_cast<size_t>(count * kBytes));
                       });
}

absl::Status PackAgain(const Stream& stream, const TensorView& rows, Weight* weight) {
  const int64_t n = weight->n();
  if (rows.rank() != 2 || rows.dim(0) != n || !stream.device().is_cpu()) {
    return absl::InvalidArgumentError(
        absl::StrCat("PackAgain: ", rows.ToString(), " is not all of ", weight->desc().ToString(), " on the CPU"));
  }
  RETURN_IF_ERROR(weight->CheckRows("PackAgain", 0, rows));
  const int64_t chunk = 4 * kPanelColumns;
  stream.pool().Run((n + chunk - 1) / chunk, [&](int64_t i) {
    SY_CHECK_OK(weight->PackRows(i * chunk, rows.Rows(i * chunk, std::min(chunk, n - i * chunk))));
  });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
