// The CPU's part of row_exchange.cc.  Internal to workers/ops; the caller checks arguments.
#pragma once

#include "absl/status/status.h"
#include "workers/ops/exchange/row_exchange_args.h"
#include "workers/tensor/device.h"

namespace switchyard::ops {

absl::Status PackRowsOnCpu(const Stream& stream, const PackRowsArgs& args);
absl::Status ReadPairsOnCpu(const ReadPairsArgs& args);
// REQUIRES: `received` was read by ReadPairsOnCpu without an error.
void PlacePairsOnCpu(const PlacePairsArgs& args);

}  // namespace switchyard::ops
