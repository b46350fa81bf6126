#include "tests/workers/ops/cuda/gemm_cuda_testing.h"

#include <cmath>
#include <numeric>
#include <random>

#include "tests/reference/gemm.h"

namespace switchyard::test {
namespace {

double RoundingUnit(DType dtype) {
  if (dtype == DType::kF64) return 0x1p-53;
  if (dtype == DType::kF32) return 0x1p-24;
  return dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

// Rows of weights begin at multiples of 16 bytes.
int64_t WeightStride(DType dtype, int64_t k) {
  const int64_t unit = 16 / DTypeBytes(dtype);
  return (k + unit - 1) / unit * unit;
}

}  // namespace

HostMatrix::HostMatrix(DType dtype, int64_t rows, int64_t columns, int64_t stride)
    : dtype(dtype),
      rows(rows),
      columns(columns),
      stride(stride),
      bytes(static_cast<size_t>(rows * stride * DTypeBytes(dtype)), kPoison) {}

void HostMatrix::FillRandom(uint32_t seed) {
  std::mt19937 rng(seed);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const uint32_t bits = rng();
      double value = static_cast<double>(bits) / 2147483648.0 - 1.0;
      if (bits % 61 == 0) value *= 1e-30;
      if (bits % 67 == 0) value = bits % 2 == 0 ? 0.0 : -0.0;
      Set(i, j, value);
    }
  }
}

double HostMatrix::Get(int64_t i, int64_t j) const {
  return VisitDType(dtype, [&]<class Elem>() {
    Elem element;
    std::memcpy(&element, bytes.data() + (i * stride + j) * sizeof(Elem), sizeof(Elem));
    if constexpr (std::is_same_v<Elem, double>) {
      return element;
    } else {
      return static_cast<double>(static_cast<float>(element));
    }
  });
}

void HostMatrix::Set(int64_t i, int64_t j, double value) {
  VisitDType(dtype, [&]<class Elem>() {
    Elem element;
    if constexpr (std::is_same_v<Elem, double>) {
      element = value;
    } else {
      element = Elem(static_cast<float>(value));
    }
    std::memcpy(bytes.data() + (i * stride + j) * sizeof(Elem), &element, sizeof(Elem));
  });
}

int64_t HostMatrix::FirstBreach(int64_t num_rows) const {
  const int64_t row_bytes = stride * DTypeBytes(dtype);
  for (size_t at = 0; at < bytes.size(); ++at) {
    const int64_t row = static_cast<int64_t>(at) / row_bytes, in_row = static_cast<int64_t>(at) % row_bytes;
    if ((row >= num_rows || in_row >= RowBytes()) && bytes[at] != kPoison) return static_cast<int64_t>(at);
  }
  return -1;
}

DeviceCopy::DeviceCopy(const void* from, size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  EXPECT_EQ(cudaMalloc(&memory_, num_bytes), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(memory_, from, num_bytes, cudaMemcpyHostToDevice), cudaSuccess);
}

DeviceCopy::~DeviceCopy() { cudaFree(memory_); }

void DeviceCopy::Fetch(void* to) const {
  if (num_bytes_ == 0) return;
  EXPECT_EQ(cudaMemcpy(to, memory_, num_bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
}

std::ostream& operator<<(std::ostream& out, const ProductCase& c) {
  out << DTypeName(c.dtype) << " to " << DTypeName(c.y_dtype) << ", rows";
  for (int64_t rows : c.expert_rows) out << " " << rows;
  return out << ", n " << c.n << ", k " << c.k << (c.gated ? ", gated" : "") << (c.accumulate ? ", accumulate" : "")
             << (c.bias ? ", bias" : "") << (c.gather ? ", gather" : "") << ", x stride + " << c.x_stride_extra
             << ", y stride + " << c.y_stride_extra;
}

Product::Product(const ProductCase& c) : case_(c) {
  offsets_.push_back(0);
  for (int64_t rows : c.expert_rows) offsets_.push_back(offsets_.back() + static_cast<int32_t>(rows));
  rows_ = offsets_.back();
  const int64_t x_count = c.gather ? rows_ / 2 + 1 : rows_;
  x_ = HostMatrix(c.dtype, x_count, c.k, c.k + c.x_stride_extra);
  x_.FillRandom(c.seed);
  std::mt19937 rng(c.seed + 1);
  for (int64_t i = 0; i < rows_; ++i) {
    x_rows_.push_back(static_cast<int32_t>(c.gather ? rng() % static_cast<uint32_t>(x_count) : i));
  }
  for (size_t e = 0; e < c.expert_rows.size(); ++e) {
    weights_.emplace_back(c.dtype, c.n, c.k, WeightStride(c.dtype, c.k));
    weights_.back().FillRandom(c.seed + 10 + static_cast<uint32_t>(e));
  }
  bias_ = HostMatrix(c.dtype, 1, c.n, c.n);
  bias_.FillRandom(c.seed + 2);
  MakeDeviceSide();
}

void Product::MakeDeviceSide() {
  device_x_ = std::make_unique<DeviceCopy>(x_.bytes);
  device_x_rows_ = std::make_unique<DeviceCopy>(x_rows_);
  device_offsets_ = std::make_unique<DeviceCopy>(offsets_);
  device_bias_ = std::make_unique<DeviceCopy>(bias_.bytes);
  std::vector<const void*> pointers;
  device_weights_.clear();
  for (const HostMatrix& w : weights_) {
    device_weights_.push_back(std::make_unique<DeviceCopy>(w.bytes));
    pointers.push_back(device_weights_.back()->at());
  }
  device_pointers_ = std::make_unique<DeviceCopy>(pointers);
  ResetY();
}

void Product::ResetY() {
  constexpr int64_t kRowsBeyond = 2;  // that no expert has
  y_ = HostMatrix(case_.y_dtype, rows_ + kRowsBeyond, columns(), columns() + case_.y_stride_extra);
  if (case_.accumulate) {
    HostMatrix old(case_.y_dtype, rows_, columns(), y_.stride);
    old.FillRandom(case_.seed + 3);
    std::copy(old.bytes.begin(), old.bytes.end(), y_.bytes.begin());
  }
  y_before_ = y_;
  device_y_ = std::make_unique<DeviceCopy>(y_.bytes);
}

ops::CudaGemmArgs Product::Dense() const {
  ops::CudaGemmArgs args = Grouped();
  args.x_rows = nullptr;
  args.weights = nullptr;
  args.weight = device_weights_[0]->at();
  args.offsets = nullptr;
  args.bias = case_.bias ? device_bias_->at() : nullptr;
  args.rows = rows_;
  args.experts = 1;
  args.accumulate = case_.accumulate;
  return args;
}

ops::CudaGemmArgs Product::Grouped() const {
  return {.dtype = static_cast<uint8_t>(case_.dtype),
          .y_dtype = static_cast<uint8_t>(case_.y_dtype),
          .x = device_x_->at(),
          .x_rows = case_.gather ? device_x_rows_->at<int32_t>() : nullptr,
          .weights = device_pointers_->at<const void*>(),
          .weight = nullptr,
          .offsets = device_offsets_->at<int32_t>(),
          .bias = nullptr,
          .y = device_y_->at(),
          .rows = rows_ + 2,  // a bound
          .n = case_.n,
          .k = case_.k,
          .x_stride = x_.stride,
          .w_stride = weights_[0].stride,
          .y_stride = y_.stride,
          .experts = static_cast<int32_t>(weights_.size()),
          .accumulate = false,
          .gated = case_.gated};
}

std::unique_ptr<DeviceCopy> Product::WeightsOf(const std::vector<int>& experts) const {
  std::vector<const void*> pointers(device_weights_.size(), nullptr);
  for (const int expert : experts) pointers[expert] = device_weights_[expert]->at();
  return std::make_unique<DeviceCopy>(pointers);
}

void Product::Fetch() {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << case_;
  device_y_->Fetch(y_.bytes.data());
}

void Product::Check() {
  Fetch();
  ASSERT_EQ(y_.FirstBreach(rows_), -1) << case_ << ": something was written outside of y";
  for (size_t e = 0; e < weights_.size(); ++e) {
    for (int64_t i = offsets_[e]; i < offsets_[e + 1]; ++i) {
      for (int64_t j = 0; j < columns(); ++j) {
        CheckElement(i, j, weights_[e]);
        if (testing::Test::HasFailure()) return;  // one is enough to read
      }
    }
  }
}

void Product::CheckElement(int64_t row, int64_t column, const HostMatrix& w) const {
  // Far away from what rounding in the sums' type may do.
  const double unit = 2.0 * static_cast<double>(case_.k + 2) * RoundingUnit(AccDType(case_.dtype));
  const auto dot = [&](int64_t w_row, double* error) {
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < case_.k; ++k) {
      const double product = x_.Get(XRow(row), k) * w.Get(w_row, k);
      sum += product, magnitude += std::fabs(product);
    }
    *error = unit * magnitude;
    return sum;
  };
  double error = 0, want = dot(column, &error);
  if (case_.gated) {
    double up_error = 0;
    const double up = dot(column + columns(), &up_error), silu = reference::Silu(want);
    error = 1.1 * error * std::fabs(up) + up_error * std::fabs(silu) + 1.1 * error * up_error +
            16 * RoundingUnit(AccDType(case_.dtype)) * std::fabs(silu * up);
    want = silu * up;
  }
  for (double addend : {case_.bias ? bias_.Get(0, column) : 0.0, case_.accumulate ? y_before_.Get(row, column) : 0.0}) {
    error += unit * std::fabs(addend);
    want += addend;
  }
  error += 2 * RoundingUnit(case_.y_dtype) * std::fabs(want) + (case_.y_dtype == DType::kF16 ? 0x1p-24 : 1e-30);
  // Not EXPECT_NEAR, which says nothing about rows and takes half the test's time.
  const double got = y_.Get(row, column);
  if (!(std::fabs(got - want) <= error)) {
    ADD_FAILURE() << case_ << ": y[" << row << "][" << column << "] is " << got << ", not " << want << " +- " << error;
  }
}

std::vector<uint8_t> Product::RowBits(int64_t row) const {
  return std::vector<uint8_t>(y_.Row(row), y_.Row(row) + y_.RowBytes());
}

std::unique_ptr<Product> Product::Subset(const std::vector<std::vector<int64_t>>& rows) const {
  ProductCase c = case_;
  c.gather = false;
  for (size_t e = 0; e < c.expert_rows.size(); ++e) c.expert_rows[e] = static_cast<int64_t>(rows[e].size());
  auto subset = std::make_unique<Product>(c);
  subset->weights_ = weights_;
  int64_t to = 0;
  for (const std::vector<int64_t>& of_expert : rows) {
    for (int64_t row : of_expert) {
      for (int64_t k = 0; k < c.k; ++k) subset->x_.Set(to, k, x_.Get(XRow(row), k));
      ++to;
    }
  }
  subset->MakeDeviceSide();
  return subset;
}

bool DeviceTakesTile(int tile, int64_t experts) {
  const ops::CudaGemmTile& shape = ops::kCudaGemmTiles[tile];
  const int64_t shared = ops::cuda::DescOf(TestCall(false), {}, /*grouped=*/false).shared_bytes;
  return (!shape.wgmma || ops::cuda::TakesWgmma(0)) && ops::CudaGemmSharedBytes(shape, experts) <= shared;
}

ops::CudaCall TestCall(bool deterministic) {
  static void* const workspace = [] {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, static_cast<size_t>(ops::kCudaWorkspaceBytes)), cudaSuccess);
    return memory;
  }();
  int num_sms = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  return {.num_sms = num_sms, .deterministic = deterministic, .workspace = workspace};
}

}  // namespace switchyard::test
