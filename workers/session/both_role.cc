#include "workers/session/both_role.h"

#include <utility>

namespace switchyard::worker {
namespace {

TrainingOptions With(CoreShare* share, TrainingOptions options) {
  options.share = share;
  return options;
}

class SharedHandler final : public LinkHandler {
 public:
  SharedHandler(CoreShare* share, std::unique_ptr<LinkHandler> serving, std::unique_ptr<LinkHandler> training)
      : share_(share), serving_(std::move(serving)), training_(std::move(training)) {}

  void Take(const v1::LinkResponse& command) override {
    if (command.has_registered()) {
      const int32_t ms = command.registered().options().train_yield_ms();
      if (ms > 0) share_->gate.SetLimit(absl::Milliseconds(ms));
      training_->Take(command);
    }
    const bool of_training = command.has_start_training() || command.has_stop_training();
    (of_training ? training_ : serving_)->Take(command);
  }
  absl::Duration patience() const override { return serving_->patience(); }  // training waits for nothing here
  const absl::Status& fatal() const override { return serving_->fatal(); }

 private:
  CoreShare* const share_;
  const std::unique_ptr<LinkHandler> serving_, training_;
};

}  // namespace

BothRole::BothRole(Worker* worker, TrainingOptions options, WorkerMetrics* metrics)
    : share_(metrics), serving_(worker, metrics, &share_), training_(With(&share_, std::move(options)), metrics) {}

void BothRole::Describe(fleet::WorkerInfo* out) const {
  serving_.Describe(out);
  out->role = fleet::kRoleBoth;
}

std::unique_ptr<LinkHandler> BothRole::Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) {
  // The two halves' owners.
  const auto shared = std::make_shared<LinkSendFn>(std::move(send));
  const auto each = [&shared] { return [shared](v1::LinkRequest message) { return (*shared)(std::move(message)); }; };
  std::unique_ptr<LinkHandler> serving = serving_.Begin(channel, place, each());
  std::unique_ptr<LinkHandler> training = training_.Begin(std::move(channel), std::move(place), each());
  return std::make_unique<SharedHandler>(&share_, std::move(serving), std::move(training));
}

void BothRole::Arrived(const v1::LinkResponse& command) {
  serving_.Arrived(command);
  const bool step = command.has_step_plan() && command.step_plan().train_slice_ms() == 0;
  if (step || command.has_join_group()) share_.gate.Shut();
}

}  // namespace switchyard::worker
