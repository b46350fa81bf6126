#include "workers/ops/gemm/cublas_refusals.h"

#include <atomic>
#include <sstream>

#include "scheduler/base/log.h"

namespace switchyard::ops {
namespace {

std::atomic<int64_t> num_cublas_refusals{0};

}  // namespace

int64_t NumCublasRefusals() { return num_cublas_refusals; }

void CountCublasRefusal(const CudaGemmDesc& desc) {
  if (num_cublas_refusals++ > 0) return;
  std::ostringstream shape;
  shape << desc;
  LogWarn("cuBLASLt refuses ", shape.str(),
          "; an own kernel computes it, more slowly. Further ones are counted alone"
          " (switchyard_worker_cublas_refusals_total).");
}

}  // namespace switchyard::ops
