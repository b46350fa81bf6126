// From how many rows on it pays that another rank computes them (row_lending.h).
//
// A lent row saves its lender the dense products of each layer, which all ranks wait for, and costs its way there and
// back; each layer costs two more exchanges.  The constants were measured with workers of one thread on two cores (AMD
// EPYC, AVX512-BF16): a hidden size of 2048 gained a fifth of a prompt's time, one of 256 lost a third.
#pragma once

#include <cstdint>

#include "workers/model/config.h"
#include "workers/tensor/dtype.h"

namespace switchyard {

// For workers of `threads` threads.  0 = never.
int32_t MinLoanRows(const ModelConfig& config, DType dtype, int threads);

}  // namespace switchyard
