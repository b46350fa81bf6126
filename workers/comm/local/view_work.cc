#include "workers/comm/local/view_work.h"

#include <utility>

#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy_bytes.h"

namespace switchyard::comm {
namespace {

class ViewWork : public OnceWork {
 public:
  ViewWork(Communicator* comm, const OpKey& key, std::unique_ptr<Work> exchange, std::vector<Landing> landings)
      : comm_(comm), key_(key), exchange_(std::move(exchange)), landings_(std::move(landings)) {
    received_.resize(comm->world());
  }

 private:
  absl::Status Finish() override {
    const std::unique_ptr<Work> exchange = std::move(exchange_);
    if (exchange == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(exchange->Wait());
    for (const Landing& landing : landings_) {
      const Message& message = exchange->received()[landing.rank];
      if (message.bytes() != landing.bytes) {
        return ExpectBytes(comm_, key_.ToString(), landing.rank, message.bytes(), landing.bytes);
      }
      CopyBytes(landing.to, message.payload(), landing.bytes);
    }
    return absl::OkStatus();
  }

  Communicator* const comm_;
  const OpKey key_;
  std::unique_ptr<Work> exchange_;
  const std::vector<Landing> landings_;
};

}  // namespace

std::unique_ptr<Work> MakeViewWork(Communicator* comm, const OpKey& key, std::unique_ptr<Work> exchange,
                                   std::vector<Landing> landings) {
  return std::make_unique<ViewWork>(comm, key, std::move(exchange), std::move(landings));
}

}  // namespace switchyard::comm
