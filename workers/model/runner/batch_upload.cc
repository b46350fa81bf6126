#include "workers/model/runner/batch_upload.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::model {

absl::StatusOr<BatchUpload> BatchUpload::Create(Device device, const ops::SequenceLimits& limits) {
  BatchUpload upload;
  upload.limits_ = limits;
  ASSIGN_OR_RETURN(upload.ints_, IntUpload::Create(device, {limits.rows, limits.rows, limits.rows, 1}));
  ASSIGN_OR_RETURN(upload.sequences_, ops::DeviceSequences::Create(device, limits));
  return upload;
}

absl::Status BatchUpload::Send(const Stream& stream, const ops::KvCacheView& cache, Batch* batch) {
  const auto rows = static_cast<int64_t>(batch->tokens.size()), wanted = static_cast<int64_t>(batch->logit_rows.size());
  if (rows > limits_.rows) {
    return absl::InvalidArgumentError(absl::StrCat("batch: ", rows, " rows, limit ", limits_.rows));
  }
  RETURN_IF_ERROR(ints_.Begin(stream));
  std::copy(batch->tokens.begin(), batch->tokens.end(), ints_.host(kTokens).begin());
  std::copy(batch->rope_rows.begin(), batch->rope_rows.end(), ints_.host(kRopeRows).begin());
  std::copy(batch->logit_rows.begin(), batch->logit_rows.end(), ints_.host(kLogitRows).begin());
  RETURN_IF_ERROR(ints_.Send(stream, {rows, rows, wanted, 0}));
  RETURN_IF_ERROR(sequences_.Set(stream, batch->sequences, rows, cache));
  Show(rows, wanted, batch);
  return absl::OkStatus();
}

void BatchUpload::Show(int64_t rows, int64_t wanted, Batch* batch) {
  on_device_ = {.num_rows = rows,
                .tokens = ints_.view(kTokens, rows),
                .rope_rows = ints_.view(kRopeRows, rows),
                .logit_rows = ints_.view(kLogitRows, wanted),
                .sequences = ops::SequenceBatch(sequences_.view())};
  batch->on_device = &on_device_;
}

absl::Status BatchUpload::SendDecodes(const Stream& stream, const ops::KvCacheView& cache, Batch* batch,
                                      const ops::DecodeBounds& bounds) {
  const auto rows = static_cast<int64_t>(batch->tokens.size());
  SY_CHECK_LE(rows, bounds.decodes);
  RETURN_IF_ERROR(ints_.Begin(stream));
  for (int64_t i = 0; i < bounds.decodes; ++i) {
    ints_.host(kTokens)[i] = i < rows ? batch->tokens[i] : 0;
    ints_.host(kRopeRows)[i] = i < rows ? batch->rope_rows[i] : 0;
    ints_.host(kLogitRows)[i] = static_cast<int32_t>(i);
  }
  ints_.host(kNumRows)[0] = static_cast<int32_t>(rows);
  RETURN_IF_ERROR(ints_.Send(stream, {bounds.decodes, bounds.decodes, bounds.decodes, 1}));
  RETURN_IF_ERROR(sequences_.SetDecodes(stream, batch->sequences, bounds, cache));
  Show(bounds.decodes, bounds.decodes, batch);
  on_device_.num_real_rows = ints_.view(kNumRows, 1).data();
  return absl::OkStatus();
}

}  // namespace switchyard::model
