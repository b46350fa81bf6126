// The loss of next-token prediction, and its gradient: loss = Σ over rows of -log softmax(logits)[target],
// dlogits = scale · (softmax(logits) - onehot(target)).
//
// A row with a negative target is ignored: it adds nothing and its gradient is zero.  Rows' losses are in double,
// added in the order of the rows; exponentials and their sum are in the logits' dtype.  A row's bits depend on that row
// alone.  Does not divide by the number of tokens: the caller puts the global one into `scale`.  Borrows all memory.
// CPU only so far.
#pragma once

#include "absl/status/statusor.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// Returns `before` and, added to it row by row, the loss, not scaled: so a sum does not depend on how its rows come in
// parts.  NaN where a row's logits have NaN or +Inf.
// Errors (InvalidArgument): shapes or dtypes that do not fit; a target >= V, with its row.
// dlogits may be the logits themselves; raw() == nullptr: not wanted.
absl::StatusOr<double> CrossEntropy(const Stream& stream, double scale,
                                    const TensorView& logits,   // [n, V] AccDType; rows may be strided
                                    const IntView& targets,     // [n] < V; negative = ignored
                                    const TensorView& dlogits,  // [n, V] model dtype, written
                                    double before = 0);

}  // namespace switchyard::ops
