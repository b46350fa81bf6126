// From how many rows on it pays that another rank computes them (token_rebalancer.h).
//
// A given away row saves its giver the dense products of each layer, which all ranks wait for, and costs its way there
// and back; each layer costs two more exchanges.  The constants were measured with workers of one thread on two cores
// (AMD EPYC, AVX512-BF16): a hidden size of 2048 gained a fifth of a prompt's time, one of 192 lost a third.  With AMX
// only the speed of whole layers was measured (Intel Xeon), not transfers.
#pragma once

#include <cstdint>

#include "workers/model/config/config.h"
#include "workers/ops/core/isa.h"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

// For workers of `threads` threads.  0 = never.
int32_t MinRebalanceRows(const ModelConfig& config, DType dtype, ops::Isa isa, int threads);

}  // namespace switchyard::model
