// The products of low-rank adapters that rows choose, beside those of the matrix W that they adapt:
//
//   u = a x,  y += scale * (b u)      for each row x of that adapter, in PEFT's order
//
// Rows of an adapter are gathered, whatever lies between them.  A product's rows do not depend on each other, so a row
// gets the same bits whichever others are there; a row without an adapter keeps its own.  Each element of u and of y is
// rounded once; b u and its scale are in AccDType, so that a large scale cannot leave the range of u.  Scratch is kept
// from call to call, and so is the order of rows, which the calls of a step share.  Thread-compatible.
// REQUIRES: the CPU.  Errors: the products', for shapes that do not fit; Internal for an unknown adapter.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/model/weights/weights.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

class RowAdapters {
 public:
  // adapters: a layer's, of which `projections` are added; of_rows: [T] adapters of the rows, from 1, 0 = none;
  // empty: no row has one.
  absl::Status Add(const Stream& stream, absl::Span<const LayerAdapter> adapters,
                   std::vector<AdapterWeights> LayerAdapter::*projections, absl::Span<const int32_t> of_rows,
                   const TensorView& x,   // [T, k] model dtype
                   const TensorView& y);  // [T, all n] model dtype or AccDType, after W's product

 private:
  // Sorts the rows that have an adapter by it: order_, begins_.  Does nothing if these rows were the last.
  absl::Status Sort(size_t num_adapters, absl::Span<const int32_t> of_rows);
  absl::Status AddOne(const Stream& stream, const AdapterWeights& adapter, absl::Span<const int64_t> rows,
                      const TensorView& gathered, const TensorView& y);

  std::vector<int32_t> sorted_;  // [T] adapters of the rows that order_ is of
  std::vector<int64_t> begins_;  // [adapters + 2] where the rows of adapter i (from 1) end in order_
  std::vector<int64_t> order_;   // rows, rising within an adapter
  moe::RowScratch x_;            // [rows, k]
  moe::RowScratch u_;            // [rows, r]
  moe::RowScratch sums_;         // [rows, n] AccDType
};

}  // namespace switchyard::model
