// The number of rows from which token rebalancing pays (token_rebalancer.h).
//
// A row saves its giver the dense products of each layer, which all ranks wait for, and costs two transfers; each layer
// costs two more exchanges.  The constants were measured with workers of one thread on two cores (AMD EPYC,
// AVX512-BF16): a hidden size of 2048 gained a fifth of a prompt's time, one of 192 lost a third.  With AMX only whole
// layers were measured (Intel Xeon), not transfers.
#pragma once

#include <cstdint>

#include "workers/model/config/config.h"
#include "workers/ops/core/isa.h"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

// threads: of each worker.  Returns 0 if rebalancing never pays.
int32_t MinRebalanceRows(const ModelConfig& config, DType dtype, ops::Isa isa, int threads);

}  // namespace switchyard::model
