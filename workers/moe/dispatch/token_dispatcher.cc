#include "workers/moe/dispatch/token_dispatcher.h"

#include "workers/moe/dispatch/device_dispatcher.h"
#include "workers/moe/dispatch/host_dispatcher.h"

namespace switchyard::moe {

std::unique_ptr<TokenDispatcher> MakeDispatcher(Device device, ExchangeMode mode) {
  if (device.is_cpu() && mode == ExchangeMode::kExact) return std::make_unique<HostDispatcher>();
  return std::make_unique<DeviceDispatcher>();
}

}  // namespace switchyard::moe
