#include "tests/bench/onednn_gemm.h"

#include <omp.h>

#include <dnnl.hpp>
#include <exception>

#include "absl/strings/str_cat.h"

namespace switchyard {
namespace {

using dnnl::memory;

class Matmul : public OneDnnGemm {
 public:
  Matmul(int64_t m, const TensorView& w, int num_threads) : num_threads_(num_threads) {
    omp_set_num_threads(num_threads_);
    const auto dtype = w.dtype() == DType::kBf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const int64_t n = w.dim(0), k = w.dim(1);
    x_desc_ = memory::desc({m, k}, dtype, memory::format_tag::ab);
    y_desc_ = memory::desc({m, n}, memory::data_type::f32, memory::format_tag::ab);
    const memory::desc any({k, n}, dtype, memory::format_tag::any);
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(x_desc_, any, y_desc_), engine_);
    matmul_ = dnnl::matmul(plan);
    memory given({{k, n}, dtype, memory::format_tag::ba}, engine_, w.raw());
    w_ = memory(plan.weights_desc(), engine_);
    dnnl::reorder(given, w_).execute(stream_, given, w_);
    stream_.wait();
  }

  absl::Status Run(const TensorView& x, const TensorView& y) override {
    try {
      omp_set_num_threads(num_threads_);
      matmul_.execute(stream_, {{DNNL_ARG_SRC, memory(x_desc_, engine_, x.raw())},
                                {DNNL_ARG_WEIGHTS, w_},
                                {DNNL_ARG_DST, memory(y_desc_, engine_, y.raw())}});
      stream_.wait();
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("onednn: ", error.what()));
    }
    return absl::OkStatus();
  }

 private:
  const int num_threads_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  memory::desc x_desc_, y_desc_;
  memory w_;
  dnnl::matmul matmul_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OneDnnGemm>> OneDnnGemm::Create(int64_t m, const TensorView& w, int num_threads) {
  if (w.dtype() != DType::kBf16 && w.dtype() != DType::kF32) {
    return absl::UnimplementedError(absl::StrCat("onednn: fp32 or bf16 only, not ", DTypeName(w.dtype())));
  }
  try {
    return std::make_unique<Matmul>(m, w, num_threads);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("onednn: ", error.what()));
  }
}

}  // namespace switchyard
