#include "workers/moe/exchange.h"

#include "workers/moe/device_exchange.h"
#include "workers/moe/host_exchange.h"

namespace switchyard {

std::unique_ptr<RowExchange> MakeExchange(Device device, ExchangeMode mode) {
  if (device.is_cpu() && mode == ExchangeMode::kExact) return std::make_unique<HostExchange>();
  return std::make_unique<DeviceExchange>();
}

}  // namespace switchyard
