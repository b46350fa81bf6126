#include "scheduler/placement/background/residency_order.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::placement {
namespace {

bool Contains(const std::vector<int32_t>& devices, int device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

// An expert that is not where it should be.
struct Traveller {
  int layer, expert;
  std::vector<int32_t> now, then;  // hosts
  int departed = -1;               // the last migration in which it departs somewhere

  bool Arrived() const { return now == then; }
  // The device that it arrives at next; none if it only waits to depart somewhere.
  std::optional<int32_t> NextHost() const {
    for (const int32_t device : then) {
      if (!Contains(now, device)) return device;
    }
    return std::nullopt;
  }
};

class MoveOrder {
 public:
  MoveOrder(const std::vector<Placement>& from, int layer_slots)
      : layer_slots_(layer_slots),
        device_slots_(layer_slots * static_cast<int>(from.size())),
        layers_(from),
        devices_(from[0].num_devices()) {
    hosted_.assign(from.size(), std::vector<int>(devices_, 0));
    in_all_.assign(devices_, 0);
    for (size_t layer = 0; layer < from.size(); ++layer) {
      ForEachReplica(from[layer], [&](int32_t device, int32_t) {
        ++hosted_[layer][device];
        ++in_all_[device];
      });
    }
    migration_hosted_ = hosted_;
    migration_in_all_ = in_all_;
  }

  void Add(const Placement& to, int layer);
  void Run();
  std::vector<ResidencyMigration> TakeMigrations() { return std::move(migrations_); }
  std::vector<Placement> TakeLayers() { return std::move(layers_); }

 private:
  void DepartWhatMay(Traveller* traveller);
  void Depart(int device, Traveller* traveller);
  void Arrive(int device, Traveller* traveller);
  // Whether the open migration can still bring it to the device, all arrivals happening before its departures.
  bool FitsMigration(int device, const Traveller& traveller) const;
  // Whether the device then hosts one too many, until something departs.
  bool Overfills(int device, const Traveller& traveller) const;
  // The traveller that has to leave the device that hosts too many; null if none does.
  Traveller* MustLeave();
  Traveller* Choose();
  void CloseMigration();

  const int layer_slots_, device_slots_;  // of a device: in one layer, in all layers
  std::vector<Placement> layers_;         // slots; what departs in the open migration is still there
  const int devices_;
  std::vector<std::vector<int>> hosted_;            // [L][R] after departures
  std::vector<std::vector<int>> migration_hosted_;  // [L][R] without departures of the open migration
  std::vector<int> in_all_, migration_in_all_;      // [R] likewise, of all layers
  std::vector<Traveller> travellers_;
  ResidencyMigration open_;
  std::vector<ResidencyMigration> migrations_;
};

void MoveOrder::Add(const Placement& to, int layer) {
  const Placement& from = layers_[layer];
  const int experts = from.num_experts;
  std::vector<std::vector<int32_t>> now(experts), then(experts);
  ForEachReplica(from, [&](int32_t device, int32_t expert) { now[expert].push_back(device); });
  ForEachReplica(to, [&](int32_t device, int32_t expert) { then[expert].push_back(device); });
  for (int expert = 0; expert < experts; ++expert) {
    Traveller traveller{layer, expert, std::move(now[expert]), std::move(then[expert])};
    if (!traveller.Arrived()) travellers_.push_back(std::move(traveller));
  }
}

void MoveOrder::Depart(int device, Traveller* traveller) {
  const auto& slots = layers_[traveller->layer].slots[device];
  const auto slot = std::find(slots.begin(), slots.end(), traveller->expert) - slots.begin();
  open_.departures.push_back({traveller->layer, traveller->expert, device, static_cast<int32_t>(slot)});
  traveller->departed = static_cast<int>(migrations_.size());
  --in_all_[device];
  --hosted_[traveller->layer][device];
  traveller->now.erase(std::find(traveller->now.begin(), traveller->now.end(), device));
}

void MoveOrder::DepartWhatMay(Traveller* traveller) {
  for (size_t host = traveller->now.size(); host-- > 0 && traveller->now.size() > 1;) {
    const int device = traveller->now[host];
    if (!Contains(traveller->then, device)) Depart(device, traveller);
  }
}

bool MoveOrder::FitsMigration(int device, const Traveller& traveller) const {
  // An expert that departs somewhere in this migration has to have done so before it arrives elsewhere.
  if (traveller.departed == static_cast<int>(migrations_.size())) return false;
  return migration_in_all_[device] <= device_slots_ && migration_hosted_[traveller.layer][device] <= layer_slots_;
}

bool MoveOrder::Overfills(int device, const Traveller& traveller) const {
  return in_all_[device] >= device_slots_ || hosted_[traveller.layer][device] >= layer_slots_;
}

void MoveOrder::Arrive(int device, Traveller* traveller) {
  if (!FitsMigration(device, *traveller)) CloseMigration();
  const int layer = traveller->layer;
  auto& slots = layers_[layer].slots[device];
  const auto empty = std::find(slots.begin(), slots.end(), kEmptySlot);
  SY_CHECK(empty != slots.end());
  *empty = traveller->expert;
  ++hosted_[layer][device];
  ++migration_hosted_[layer][device];
  ++in_all_[device];
  ++migration_in_all_[device];
  traveller->now.insert(std::lower_bound(traveller->now.begin(), traveller->now.end(), device), device);
  open_.arrivals.push_back({layer, traveller->expert, device, static_cast<int32_t>(empty - slots.begin())});
}

Traveller* MoveOrder::MustLeave() {
  for (Traveller& traveller : travellers_) {
    if (traveller.now.size() != 1 || traveller.Arrived()) continue;
    const int device = traveller.now[0];
    if (!Contains(traveller.then, device) && hosted_[traveller.layer][device] > layer_slots_) return &traveller;
  }
  return nullptr;
}

Traveller* MoveOrder::Choose() {
  if (Traveller* leaving = MustLeave()) return leaving;
  Traveller *first = nullptr, *fits = nullptr;
  for (Traveller& traveller : travellers_) {
    const auto device = traveller.NextHost();
    if (!device) continue;
    if (first == nullptr) first = &traveller;
    if (!FitsMigration(*device, traveller)) continue;
    if (!Overfills(*device, traveller)) return &traveller;
    if (fits == nullptr) fits = &traveller;
  }
  return fits != nullptr ? fits : first;
}

void MoveOrder::CloseMigration() {
  for (const ResidencyMove& move : open_.departures) layers_[move.layer].slots[move.device][move.slot] = kEmptySlot;
  migration_hosted_ = hosted_;
  migration_in_all_ = in_all_;
  if (!open_.arrivals.empty() || !open_.departures.empty()) migrations_.push_back(std::exchange(open_, {}));
}

void MoveOrder::Run() {
  for (Traveller& traveller : travellers_) DepartWhatMay(&traveller);
  while (Traveller* traveller = Choose()) {
    const auto device = traveller->NextHost();
    SY_CHECK(device.has_value());
    Arrive(*device, traveller);
    DepartWhatMay(traveller);
  }
  CloseMigration();
  for (const Traveller& traveller : travellers_) SY_CHECK(traveller.Arrived());
}

}  // namespace

std::vector<ResidencyMigration> OrderMoves(const std::vector<Placement>& from, int layer_slots,
                                           const std::vector<int>& layer_order, std::vector<Placement>* to) {
  SY_CHECK_EQ(from.size(), to->size());
  if (from.empty()) return {};
  MoveOrder order(from, layer_slots);
  for (const int layer : layer_order) order.Add((*to)[layer], layer);
  order.Run();
  *to = order.TakeLayers();
  return order.TakeMigrations();
}

}  // namespace switchyard::placement
