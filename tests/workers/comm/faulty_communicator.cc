#include "tests/workers/comm/faulty_communicator.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {
namespace {

class FaultyCommunicator : public Communicator {
 public:
  FaultyCommunicator(std::unique_ptr<Communicator> inner, CommFault fault)
      : Communicator(inner->group(), MessagePool::Create()), inner_(std::move(inner)), fault_(fault) {}

  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }

  WorkOr StartExchange(Exchange exchange) override {
    RETURN_IF_ERROR(Inject(&exchange.key));
    return inner_->StartExchange(std::move(exchange));
  }
  WorkOr StartOnDevice(const DeviceCollective& collective) override {
    if (collective.stream == nullptr || collective.stream->device().kind == DeviceKind::kCpu) {
      return Communicator::StartOnDevice(collective);  // comes back as an exchange
    }
    DeviceCollective faulty = collective;
    RETURN_IF_ERROR(Inject(&faulty.key));
    return inner_->StartOnDevice(faulty);
  }

 private:
  // The fault, if this launch is the one.
  absl::Status Inject(OpKey* key) {
    const int64_t launch = launches_++;
    if (fault_.kind == CommFault::Kind::kJitter) {
      const uint64_t drawn =
          SplitMix(static_cast<uint64_t>(launch) ^ SplitMix(static_cast<uint64_t>(fault_.at_launch)));
      absl::SleepFor(fault_.delay * (static_cast<double>(drawn % 1024) / 1024));
    }
    if (launch != fault_.at_launch) return absl::OkStatus();
    switch (fault_.kind) {
      case CommFault::Kind::kNone:
      case CommFault::Kind::kJitter:
        break;
      case CommFault::Kind::kFail: {
        const std::string reason = absl::StrCat("injected fault in ", key->ToString());
        inner_->Abort(reason);
        return absl::UnavailableError(reason);
      }
      case CommFault::Kind::kDelay:
        absl::SleepFor(fault_.delay);
        break;
      case CommFault::Kind::kWrongOp:
        key->op = key->op == CommOp::kBarrier ? CommOp::kBroadcast : CommOp::kBarrier;
        break;
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<Communicator> inner_;
  const CommFault fault_;
  std::atomic<int64_t> launches_ = 0;  // of all classes, each on its own thread
};

}  // namespace

std::unique_ptr<Communicator> MakeFaultyCommunicator(std::unique_ptr<Communicator> inner, CommFault fault) {
  SY_CHECK(inner != nullptr);
  return std::make_unique<FaultyCommunicator>(std::move(inner), fault);
}

}  // namespace switchyard::comm
