// Arithmetic of rows beside a product: low-rank adapters scale what A gives, and add what B gives to the sums of the
// matrix that they adapt.
//
// A row's bits depend on that row alone.  Borrows all memory.  CPU only.  A shape or dtype that does not fit is the
// caller's fault (SY_CHECK).
#pragma once

#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// rows *= scale, each element in AccDType and rounded once.
void ScaleRows(const Stream& stream, double scale, const TensorView& rows);  // [T, n] floating; rows may be strided

// y += sums, each element rounded once.
void AddRounded(const Stream& stream,
                const TensorView& sums,  // [T, n] AccDType of y's
                const TensorView& y);    // [T, n] floating; rows may be strided

}  // namespace switchyard::ops
