#include "scheduler/offload/cold_choice.h"

#include <cmath>

#include "scheduler/base/check.h"

namespace switchyard::offload {

bool ColdChoice::StaysCold(ExpertKey key, double rent, double price) {
  SY_CHECK(key >= 0 && static_cast<size_t>(key) < paid_.size());
  SY_CHECK(rent >= 0 && price >= 0);
  Paid& paid = paid_[static_cast<size_t>(key)];
  const double faded = paid.rents * std::exp2(-static_cast<double>(pass_ - paid.pass) / kHalfLife);
  const bool stays = faded + rent < price;
  paid = {.rents = stays ? faded + rent : 0, .pass = pass_};
  return stays;
}

}  // namespace switchyard::offload
