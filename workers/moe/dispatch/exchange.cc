#include "workers/moe/dispatch/exchange.h"

#include "workers/moe/dispatch/device_exchange.h"
#include "workers/moe/dispatch/host_exchange.h"

namespace switchyard {

std::unique_ptr<RowExchange> MakeExchange(Device device, ExchangeMode mode) {
  if (device.is_cpu() && mode == ExchangeMode::kExact) return std::make_unique<HostExchange>();
  return std::make_unique<DeviceExchange>();
}

}  // namespace switchyard
