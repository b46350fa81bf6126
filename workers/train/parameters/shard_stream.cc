#include "workers/train/parameters/shard_stream.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy_bytes.h"

namespace switchyard::train {
namespace {

constexpr absl::Duration kLookAtWish = absl::Milliseconds(100);

int64_t BytesOf(const ParameterBlock& block) { return DTypeBytes(block.master.dtype()); }

// Elements that a rank has of a block.
ElementRange PartOf(const ParameterBlock& block, int rank) {
  const std::vector<int64_t>& borders = block.borders;
  return {borders[rank], borders[rank + 1] - borders[rank]};
}

}  // namespace

absl::Status AwaitRound(comm::Work* work, absl::Time deadline, const std::function<bool()>& given_up) {
  while (!work->AwaitMessages(std::min(deadline, MonotonicNow() + kLookAtWish)).empty() && MonotonicNow() < deadline) {
    if (given_up()) return absl::CancelledError("the save is given up");
  }
  return work->Wait();
}

ShardStream::ShardStream(comm::Communicator* comm, absl::Span<const ParameterBlock> blocks, ShardStreamOptions options)
    : comm_(comm), options_(std::move(options)), plans_(static_cast<size_t>(comm->world())) {
  for (const bool weights : {true, false}) {
    if (weights && !options_.with_weights) continue;
    for (const ParameterBlock& block : blocks) Append(block, weights);
  }
  for (const Plan& plan : plans_) {
    rounds_ = std::max(rounds_, (plan.elements + options_.round_elements - 1) / options_.round_elements);
  }
}

void ShardStream::Append(const ParameterBlock& block, bool weights) {
  if (!block.is_sharded()) return;
  Plan& plan = plans_[static_cast<size_t>(block.writer)];
  for (const model::Param& part : block.parts) {
    const ElementRange range = {part.first_row * part.columns, part.rows * part.columns};
    for (size_t kept = 0; kept < (weights ? 1 : StateOf(block).size()); ++kept) {
      plan.items.push_back({&block, kept, range});
      plan.elements += range.count;
    }
  }
}

void ShardStream::Advance(Plan* plan, int64_t elements,
                          const std::function<void(const Item&, const ElementRange&)>& use) {
  while (elements > 0 && plan->next < plan->items.size()) {
    const Item& item = plan->items[plan->next];
    const int64_t count = std::min(elements, item.range.count - plan->done);
    use(item, {item.range.begin + plan->done, count});
    elements -= count;
    plan->done += count;
    if (plan->done < item.range.count) continue;
    ++plan->next;
    plan->done = 0;
  }
}

absl::Status ShardStream::Round() {
  SY_CHECK_LT(rounds_done_, rounds_);
  SY_CHECK_EQ(read_, here_.size());
  if (options_.given_up()) return absl::CancelledError("the save is given up");
  const int me = comm_->rank();
  std::vector<comm::Message> out;
  std::vector<std::pair<const Item*, ElementRange>> mine;  // that come
  for (int r = 0; r < comm_->world(); ++r) {
    std::vector<TensorView> views;
    int64_t bytes = 0;
    Advance(&plans_[static_cast<size_t>(r)], options_.round_elements, [&](const Item& item, const ElementRange& range) {
      if (r == me) mine.emplace_back(&item, range);
      const ElementRange here = Intersect(range, item.block->own());
      if (here.count == 0) return;
      views.push_back(item.block->StateAt(kState[item.kept], here));
      bytes += here.count * BytesOf(*item.block);
    });
    comm::Message& message = out.emplace_back(comm_->NewMessage(bytes));
    char* to = message.payload();
    for (const TensorView& view : views) {
      CopyBytes(to, view.raw(), comm::NumBytes(view));
      to += comm::NumBytes(view);
    }
  }
  ++rounds_done_;
  const absl::Time deadline = MonotonicNow() + options_.round_limit;
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work,
                   comm_->AllToAllV({.comm_class = comm::CommClass::kAllReduce, .deadline = deadline}, std::move(out)));
  RETURN_IF_ERROR(AwaitRound(work.get(), deadline, options_.given_up));
  here_.clear();
  read_ = 0;
  std::vector<int64_t> used(static_cast<size_t>(comm_->world()), 0);
  for (const auto& [item, range] : mine) {
    for (int r = 0; r < comm_->world(); ++r) {
      const int64_t bytes = Intersect(range, PartOf(*item->block, r)).count * BytesOf(*item->block);
      const comm::Message& message = work->received()[static_cast<size_t>(r)];
      int64_t& at = used[static_cast<size_t>(r)];
      if (at + bytes > message.bytes()) {
        const absl::Status status = absl::InternalError(absl::StrCat(
            "collectives differ: rank ", r, " sent ", message.bytes(), " bytes of a checkpoint, expected more"));
        comm_->Abort(status.message());
        return status;
      }
      if (bytes > 0) here_.append(message.payload() + at, static_cast<size_t>(bytes));
      at += bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status ShardStream::Read(absl::Span<char> to) {
  while (!to.empty()) {
    if (read_ == here_.size()) RETURN_IF_ERROR(Round());
    const size_t count = std::min(to.size(), here_.size() - read_);
    std::memcpy(to.data(), here_.data() + read_, count);
    read_ += count;
    to.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status ShardStream::Finish() {
  while (rounds_done_ < rounds_) RETURN_IF_ERROR(Round());
  return absl::OkStatus();
}

}  // namespace switchyard::train
