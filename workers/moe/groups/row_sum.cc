#include "workers/moe/groups/row_sum.h"

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy.h"

namespace switchyard::moe {

absl::Status RowSum::Start(const Stream& stream, comm::Communicator* among, const comm::CommCall& call,
                           const TensorView& rows) {
  SY_CHECK(rows.contiguous());
  rows_ = values_ = rows;
  if (rows.dtype() == DType::kF16) {  // which communicators do not add
    values_ = memory_.Rows(rows.dim(0), rows.dim(1), AccDType(rows.dtype()));
    RETURN_IF_ERROR(RoundRows(stream, rows, values_));
  }
  ASSIGN_OR_RETURN(work_, among->AllReduceSum(call, values_.Reshape({values_.NumElements()})));
  return absl::OkStatus();
}

absl::Status RowSum::Finish(const Stream& stream) {
  RETURN_IF_ERROR(work_->Wait());
  work_.reset();
  return values_.dtype() == rows_.dtype() ? absl::OkStatus() : RoundRows(stream, values_, rows_);
}

}  // namespace switchyard::moe
