#include "workers/model/runner/batch_upload.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::model {

std::vector<int64_t> BatchUpload::CountsOf(const ops::SequenceLimits& limits) {
  std::vector<int64_t> counts = ops::DeviceSequences::CountsOf(limits);
  counts.insert(counts.end(), {limits.rows, limits.rows, limits.rows, 1});
  return counts;
}

absl::StatusOr<BatchUpload> BatchUpload::Create(Device device, const ops::SequenceLimits& limits) {
  BatchUpload upload;
  upload.limits_ = limits;
  ASSIGN_OR_RETURN(upload.sequences_, ops::DeviceSequences::Create(device, limits));
  return upload;
}

absl::Status BatchUpload::Send(const Stream& stream, IntUpload* upload, const ops::KvCacheView& cache, Batch* batch) {
  const auto rows = static_cast<int64_t>(batch->tokens.size());
  if (rows > limits_.rows) {
    return absl::InvalidArgumentError(absl::StrCat("batch: ", rows, " rows, limit ", limits_.rows));
  }
  const auto copied = [&](const std::vector<int32_t>& numbers) {
    const IntUpload::Array to = upload->Take(static_cast<int64_t>(numbers.size()));
    std::copy(numbers.begin(), numbers.end(), to.host.begin());
    return to.device;
  };
  on_device_ = {.num_rows = rows,
                .tokens = copied(batch->tokens),
                .rope_rows = copied(batch->rope_rows),
                .logit_rows = copied(batch->logit_rows),
                .sequences = ops::SequenceBatch(sequences_.view())};
  RETURN_IF_ERROR(sequences_.Set(stream, upload, batch->sequences, rows, cache));
  batch->on_device = &on_device_;
  return absl::OkStatus();
}

absl::Status BatchUpload::SendDecodes(const Stream& stream, IntUpload* upload, const ops::KvCacheView& cache,
                                      Batch* batch, const ops::DecodeBounds& bounds) {
  const auto rows = static_cast<int64_t>(batch->tokens.size());
  SY_CHECK_LE(rows, bounds.decodes);
  const IntUpload::Array tokens = upload->Take(bounds.decodes), rope_rows = upload->Take(bounds.decodes);
  const IntUpload::Array logit_rows = upload->Take(bounds.decodes), num_rows = upload->Take(1);
  for (int64_t i = 0; i < bounds.decodes; ++i) {
    tokens.host[i] = i < rows ? batch->tokens[i] : 0;
    rope_rows.host[i] = i < rows ? batch->rope_rows[i] : 0;
    logit_rows.host[i] = static_cast<int32_t>(i);
  }
  num_rows.host[0] = static_cast<int32_t>(rows);
  RETURN_IF_ERROR(sequences_.SetDecodes(stream, upload, batch->sequences, bounds, cache));
  on_device_ = {.num_rows = bounds.decodes,
                .tokens = tokens.device,
                .rope_rows = rope_rows.device,
                .logit_rows = logit_rows.device,
                .sequences = ops::SequenceBatch(sequences_.view()),
                .num_real_rows = num_rows.device.data()};
  batch->on_device = &on_device_;
  return absl::OkStatus();
}

}  // namespace switchyard::model
