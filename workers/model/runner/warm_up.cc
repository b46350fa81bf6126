#include "workers/model/runner/warm_up.h"

#include <algorithm>

#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/forward/batch.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/ops/sampling/device_sequences.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_queue.h"

namespace switchyard::model {

absl::Status WarmUp(const Stream& stream, Model* model, const WarmUpSize& size) {
  const ModelConfig& config = model->config();
  const int64_t rows = size.rows;
  RETURN_IF_ERROR(model->Reserve(rows));
  moe::MoeCapacity room = {.stream = &stream, .layout = size.layout, .rank = size.rank, .rows = size.recorded_rows};
  if (room.rows > 0) RETURN_IF_ERROR(model->ReserveRecorded(room));
  room.rows = rows;
  if (size.layout->num_ranks() > 1) {
    RETURN_IF_ERROR(stream.queue()->Workspace(ops::kCudaWorkspaceBytes).status());
    return model->ReserveExchange(room);
  }
  ASSIGN_OR_RETURN(KvCache cache, KvCache::Create(config, model->dtype(), 1, KvBytesPerToken(config, model->dtype()),
                                                  stream.device()));
  // Every row is token 0 of no sequence, and the number of real rows is 0, too.
  ASSIGN_OR_RETURN(Tensor zeros, Tensor::Allocate(DType::kI32, {rows}, stream.device()));
  RETURN_IF_ERROR(FillZero(stream, zeros));
  const ops::SequenceLimits limits = {.sequences = 1, .rows = rows, .blocks = 1};
  ASSIGN_OR_RETURN(ops::DeviceSequences sequences, ops::DeviceSequences::Create(stream.device(), limits));
  ASSIGN_OR_RETURN(IntUpload upload, IntUpload::Create(stream.device(), ops::DeviceSequences::CountsOf(limits)));
  RETURN_IF_ERROR(upload.Begin(stream));
  RETURN_IF_ERROR(sequences.Set(stream, &upload, {}, rows, cache.layer(0)));
  const BatchOnDevice on_device = {.num_rows = rows,
                                   .tokens = IntView(zeros),
                                   .rope_rows = IntView(zeros),
                                   .logit_rows = IntView(zeros.view().Rows(0, std::min(rows, kHeadRows))),
                                   .sequences = ops::SequenceBatch(sequences.view()),
                                   .num_real_rows = zeros.data<int32_t>()};
  Batch batch;
  batch.on_device = &on_device;
  const std::unique_ptr<comm::Communicator> alone = std::move(comm::MakeLocalGroup(1)[0]);
  const pipeline::MoeSchedule schedule =
      pipeline::BuildExpertParallel({.shared_expert = config.shared_intermediate > 0});
  const auto ignore = [](int64_t, const TensorView&) { return absl::OkStatus(); };
  moe::MoeStats stats;
  const moe::MoeContext moe = {
      .stream = &stream, .comm = alone.get(), .layout = size.layout, .schedule = &schedule, .stats = &stats};
  const StageIn in = {.batch = &batch, .moe = &moe, .logits = LogitsSink(ignore)};
  RETURN_IF_ERROR(model->Forward(in, model->all_layers(), &cache, /*saved=*/nullptr).status());
  return Synchronize(stream);
}

}  // namespace switchyard::model
