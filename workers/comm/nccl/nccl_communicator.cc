#include "workers/comm/nccl/nccl_communicator.h"

#include <cuda_runtime.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/group/subgroup.h"
#include "workers/comm/nccl/nccl_form.h"
#include "workers/comm/nccl/nccl_group.h"
#include "workers/comm/nccl/nccl_ops.h"
#include "workers/tensor/cuda/cuda_status.h"

namespace switchyard::comm {
namespace {

constexpr int64_t kCaptured = -1;

cudaStream_t StreamOf(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

absl::StatusOr<bool> IsCaptured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  SY_RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(stream, &status));
  if (status == cudaStreamCaptureStatusInvalidated) return absl::InternalError("the capture is broken already");
  return status == cudaStreamCaptureStatusActive;
}

class NcclWork : public OnceWork {
 public:
  // number: kCaptured if it went into a graph.
  NcclWork(std::shared_ptr<NcclGroup> group, const DeviceCollective& collective, int64_t number, CudaEvents::Event done)
      : group_(std::move(group)),
        key_(collective.key),
        deadline_(collective.deadline),
        stream_(StreamOf(*collective.stream)),
        number_(number),
        done_(std::move(done)) {
    received_.resize(group_->host().world());
  }
  ~NcclWork() override {
    if (!waited()) (void)group_->Fail(absl::UnavailableError(absl::StrCat(key_.ToString(), " was dropped unfinished")));
  }

  absl::Status WaitOnHost() override {
    if (number_ == kCaptured) {
      return absl::FailedPreconditionError(absl::StrCat(key_.ToString(), " is in a graph; wait for a Fence behind it"));
    }
    RETURN_IF_ERROR(Wait());
    return group_->AwaitDone(number_, deadline_);
  }

 private:
  // Makes the stream wait.
  absl::Status Finish() override {
    const CudaEvents::Event done = std::move(done_);
    RETURN_IF_ERROR(group_->status());
    const OnDevice on(group_->device());
    const absl::Status waits = CudaStatus("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_, done.get(), 0));
    return waits.ok() ? waits : group_->Fail(waits);
  }

  const std::shared_ptr<NcclGroup> group_;  // shared with the communicator
  const OpKey key_;
  const absl::Time deadline_;
  const cudaStream_t stream_;
  const int64_t number_;
  CudaEvents::Event done_;
};

// A stream of our own.
using OwnStream = std::remove_pointer_t<cudaStream_t>;
struct DestroyStream {
  void operator()(cudaStream_t stream) const { (void)cudaStreamDestroy(stream); }
};

// What a group and its Splits have in common.
struct NcclShared {
  NcclGroupOptions options;
  std::unique_ptr<OwnStream, DestroyStream> stream;
};

absl::StatusOr<std::unique_ptr<Communicator>> FormOver(std::shared_ptr<const NcclShared> shared, absl::Time deadline,
                                                       RendezvousStore* store, NcclHostGroups host, uint32_t split_id);

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclGroup> group, std::shared_ptr<const NcclShared> shared, uint32_t split_id)
      : Communicator(group->host().group(), MessagePool::Create()),
        group_(std::move(group)),
        shared_(std::move(shared)),
        split_id_(split_id),
        events_(std::make_shared<CudaEvents>()),
        stream_(shared_->stream.get()) {}
  ~NcclCommunicator() override { group_->End(); }

  void Abort(absl::string_view reason) override {
    (void)group_->Fail(absl::UnavailableError(absl::StrCat("aborted: ", reason)));
  }
  // Also of a failure in the group that this is a Split of, or in a Split of this: it has ended the host group, which
  // they share, before it freed the stream, which they share, too.
  absl::Status status() const override {
    RETURN_IF_ERROR(group_->status());
    const absl::Status host = group_->host().status();
    return host.ok() ? host : group_->Fail(host);
  }

  WorkOr StartExchange(Exchange exchange) override {
    RETURN_IF_ERROR(status());
    return group_->host().StartExchange(std::move(exchange));
  }

  WorkOr StartOnDevice(const DeviceCollective& collective) override {
    if (collective.stream == nullptr || collective.stream->device().is_cpu()) {
      return Communicator::StartOnDevice(collective);
    }
    if (collective.stream->device().index != group_->device()) {
      return absl::InvalidArgumentError(absl::StrCat(collective.key.ToString(), " on ",
                                                     collective.stream->device().ToString(), ": this rank's device is ",
                                                     group_->device()));
    }
    RETURN_IF_ERROR(status());
    const OnDevice on(group_->device());
    ASSIGN_OR_RETURN(const bool captured, IsCaptured(StreamOf(*collective.stream)));
    const bool fence = collective.key.op == CommOp::kFence;
    if (captured && fence) {
      return absl::FailedPreconditionError("a fence is for the host, behind the graph, not in it");
    }
    ASSIGN_OR_RETURN(const int64_t number, group_->Begin(LaunchOf(collective)));
    absl::StatusOr<CudaEvents::Event> done =
        fence ? CudaEvents::Record(events_, StreamOf(*collective.stream)) : Enqueue(collective);
    if (!done.ok()) return group_->NotLaunched(done.status());
    if (captured) {
      group_->Captured();
    } else {
      group_->Watch(*done);
    }
    return std::make_unique<NcclWork>(group_, collective, captured ? kCaptured : number, *std::move(done));
  }

  // The forming of the group has sent messages.
  void ContinueAfterForming() { ContinueNumberingOf(group_->host()); }

  // Every rank exchanges with every other and sums: broken links show here and not in the first step, and NCCL makes
  // the setup of first use, which must not be captured.
  absl::Status WarmUp(absl::Time deadline) {
    const OnDevice on(group_->device());
    const int64_t ranks = world();
    void* memory = nullptr;
    SY_RETURN_IF_CUDA_ERROR(cudaMalloc(&memory, static_cast<size_t>(2 * ranks) * sizeof(int64_t)));
    const TensorView both(memory, DType::kI64, {2 * ranks}, Device::Cuda(group_->device()));
    std::vector<int64_t> offsets, bytes(ranks, sizeof(int64_t));
    for (int64_t r = 0; r < ranks; ++r) offsets.push_back(r * static_cast<int64_t>(sizeof(int64_t)));
    DeviceCollective exchange{.key = {.op = CommOp::kAllToAllSized, .sequence = -1}, .deadline = deadline};
    exchange.send = both.Rows(0, ranks);
    exchange.recv = both.Rows(ranks, ranks);
    exchange.send_offsets = exchange.recv_offsets = offsets;
    exchange.send_bytes = exchange.recv_bytes = bytes;
    DeviceCollective sum{.key = {.op = CommOp::kAllReduceSum, .sequence = -1}, .deadline = deadline};
    sum.send = sum.recv = both;
    absl::Status status = RunToTheEnd(exchange);
    if (status.ok()) status = RunToTheEnd(sum);
    if (status.ok())
      status = CudaStatus("cudaFree", cudaFree(memory));  // else NCCL may still write it; the group has ended
    return status;
  }

 protected:
  uint32_t split_id() const override { return split_id_; }
  absl::StatusOr<std::unique_ptr<Communicator>> MakeSplit(const std::vector<int>& members, uint32_t split_id,
                                                          absl::Time deadline) override {
    NcclHostGroups host;
    host.messages = MakeSubgroup(&group_->host(), pool(), members, split_id);
    if (members.size() > 1) host.watch = MakeSubgroup(&group_->host(), pool(), members, split_id | kWatchOfSplit);
    return FormOver(shared_, deadline, nullptr, std::move(host), split_id);
  }

 private:
  static constexpr uint32_t kWatchOfSplit = 1 << 16;  // beside a Split's own number

  absl::Status RunToTheEnd(const DeviceCollective& collective) {
    ASSIGN_OR_RETURN(const int64_t number, group_->Begin(LaunchOf(collective)));
    absl::StatusOr<CudaEvents::Event> done = PutOnOurs(collective);
    if (!done.ok()) return group_->NotLaunched(done.status());
    group_->Watch(*std::move(done));
    return group_->AwaitDone(number, collective.deadline);
  }

  static NcclGroup::Launch LaunchOf(const DeviceCollective& collective) {
    return {collective.key,
            collective.deadline,
            {collective.send_bytes.begin(), collective.send_bytes.end()},
            {collective.recv_bytes.begin(), collective.recv_bytes.end()}};
  }

  // Enqueues after the caller's stream; returns an event after the collective.
  absl::StatusOr<CudaEvents::Event> Enqueue(const DeviceCollective& collective) {
    ASSIGN_OR_RETURN(const CudaEvents::Event before, CudaEvents::Record(events_, StreamOf(*collective.stream)));
    SY_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(stream_, before.get(), 0));
    return PutOnOurs(collective);
  }

  absl::StatusOr<CudaEvents::Event> PutOnOurs(const DeviceCollective& collective) {
    if (!collective.send_bytes.empty() && collective.send_bytes[rank()] > 0) {
      char* const to = BytesAt(collective.recv, collective.recv_offsets[rank()]);
      const char* const from = BytesAt(collective.send, collective.send_offsets[rank()]);
      if (to != from) {
        SY_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, static_cast<size_t>(collective.send_bytes[rank()]),
                                                cudaMemcpyDeviceToDevice, stream_));
      }
    }
    RETURN_IF_ERROR(
        group_->nccl().Launch([&](ncclComm_t comm) { return CallNccl(collective, rank(), world(), comm, stream_); }));
    return CudaEvents::Record(events_, stream_);
  }

  const std::shared_ptr<NcclGroup> group_;  // shared with works that are still held
  const std::shared_ptr<const NcclShared> shared_;
  const uint32_t split_id_;
  const std::shared_ptr<CudaEvents> events_;  // shared with their events
  const cudaStream_t stream_;                 // of shared_
};

// Connects, step by step.  An error here fails the group, so that the peers know.
absl::Status Connect(const NcclGroupOptions& options, RendezvousStore* store, std::unique_ptr<Communicator> watch,
                     NcclGroup* group) {
  RETURN_IF_ERROR(CompareRanks(options, &group->host()));
  if (watch != nullptr) group->StartPeerWatch(std::move(watch), options.watch);
  const GroupId& id = group->host().group();
  ASSIGN_OR_RETURN(const std::string nccl_id, ShareNcclId(options, &group->host(), store));
  ASSIGN_OR_RETURN(std::unique_ptr<NcclHandle> nccl, NcclHandle::Begin(options.device, id.rank, id.world, nccl_id));
  group->StartWatchdog(std::move(nccl));  // from here on an error or a peer's word ends this wait, too
  return group->nccl().Connect(absl::StrCat("connecting NCCL's rank ", id.rank, " of ", id.world), options.deadline);
}

absl::StatusOr<cudaStream_t> NewStream(int device) {
  SY_RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
  int lowest = 0, highest = 0;
  SY_RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  SY_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  return stream;
}

absl::StatusOr<std::unique_ptr<Communicator>> FormOver(std::shared_ptr<const NcclShared> shared, absl::Time deadline,
                                                       RendezvousStore* store, NcclHostGroups host, uint32_t split_id) {
  NcclGroupOptions options = shared->options;
  options.deadline = deadline;
  // The connections that a Split would close are the whole group's: only where a peer counts as gone.
  if (split_id != 0) options.watch.last_words = options.watch.timeout;
  const bool alone = host.messages->world() == 1;
  auto group = std::make_shared<NcclGroup>(options.device, std::move(host.messages));
  auto comm = std::make_unique<NcclCommunicator>(group, std::move(shared), split_id);
  absl::Status status = Connect(options, store, alone ? nullptr : std::move(host.watch), group.get());
  if (status.ok()) status = group->BecomeReady();
  if (status.ok()) {
    comm->ContinueAfterForming();
    status = comm->WarmUp(options.deadline);
  }
  if (!status.ok()) return group->FailByNccl(status);
  group->nccl().DropScaffold();
  return comm;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> FormNcclGroup(const NcclGroupOptions& options, RendezvousStore* store,
                                                            NcclHostGroups host) {
  RETURN_IF_ERROR(CheckNcclOptions(options, host));
  auto shared = std::make_shared<NcclShared>();
  shared->options = options;
  ASSIGN_OR_RETURN(const cudaStream_t stream, NewStream(options.device));
  shared->stream.reset(stream);
  return FormOver(std::move(shared), options.deadline, store, std::move(host), /*split_id=*/0);
}

}  // namespace switchyard::comm
