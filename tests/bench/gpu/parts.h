// The parts of gpu_bench.  Each prints a line of JSON a figure (Bench::Measure); an error is one that the device keeps.
#pragma once

#include "absl/status/status.h"
#include "tests/bench/gpu/bench.h"

namespace switchyard {

absl::Status BenchCeilings(Bench* bench);   // "copy" and "gemm": what everything else is compared with
absl::Status BenchProducts(Bench* bench);   // dense products
absl::Status BenchRowOps(Bench* bench);     // norms, routing, order by expert, combine, embedding, sampling
absl::Status BenchElements(Bench* bench);   // what moves or changes elements one by one: clamp, gather, counts
absl::Status BenchExchange(Bench* bench);   // what packs and unpacks the rows that ranks exchange
absl::Status BenchAttention(Bench* bench);  // what is between the qkv product and the output's, and attention
absl::Status BenchMoe(Bench* bench);        // MoE layers
absl::Status BenchModels(Bench* bench);     // whole models with random weights

}  // namespace switchyard
