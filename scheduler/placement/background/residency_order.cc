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
  bool offloaded, offloaded_then;
  int departed = -1;  // the last migration in which it departs somewhere

  bool Arrived() const { return now == then && offloaded == offloaded_then; }
  // The next move that needs room; none if the expert only waits to depart somewhere.
  std::optional<ResidencyMove> NextArrival() const {
    if (offloaded) {  // one host
      if (!Contains(then, now[0])) return ResidencyMove{MoveKind::kRehome, layer, expert, then[0], 0};
      if (!offloaded_then) return ResidencyMove{MoveKind::kLoad, layer, expert, now[0], 0};
    } else if (!offloaded_then) {
      for (const int32_t device : then) {
        if (!Contains(now, device)) return ResidencyMove{MoveKind::kCopy, layer, expert, device, 0};
      }
    }
    return std::nullopt;
  }
};

class MoveOrder {
 public:
  MoveOrder(const std::vector<LayerResidency>& from, const ResidencyLimits& limits)
      : limits_(limits), layers_(from), devices_(from[0].placement.num_devices()) {
    hosted_.assign(from.size(), std::vector<int>(devices_, 0));
    in_memory_.assign(devices_, 0);
    for (size_t layer = 0; layer < from.size(); ++layer) {
      ForEachReplica(from[layer].placement, [&](int32_t device, int32_t expert) {
        ++hosted_[layer][device];
        if (!from[layer].offloaded[expert]) ++in_memory_[device];
      });
    }
    migration_hosted_ = hosted_;
    migration_in_memory_ = in_memory_;
  }

  void Add(const LayerResidency& to, int layer);
  void Run();
  std::vector<ResidencyMigration> TakeMigrations() { return std::move(migrations_); }
  std::vector<LayerResidency> TakeLayers() { return std::move(layers_); }

 private:
  static bool NeedsMemory(MoveKind kind) { return kind == MoveKind::kCopy || kind == MoveKind::kLoad; }
  static bool NeedsSlot(MoveKind kind) { return kind == MoveKind::kCopy || kind == MoveKind::kRehome; }

  void DepartWhatMay(Traveller* traveller);
  void Depart(MoveKind kind, int device, Traveller* traveller);
  void Arrive(ResidencyMove move, Traveller* traveller);
  // Whether the open migration can still take the move, all arrivals happening before its departures.
  bool FitsMigration(const ResidencyMove& move, const Traveller& traveller) const;
  // Whether the device then exceeds its limits by one, until something departs.
  bool Overfills(const ResidencyMove& move) const;
  // The traveller that has to leave the device that exceeds its limits; null if none does.
  Traveller* MustLeave();
  Traveller* Choose();
  void CloseMigration();

  const ResidencyLimits limits_;
  std::vector<LayerResidency> layers_;  // slots; what departs in the open migration is still there
  const int devices_;
  std::vector<std::vector<int>> hosted_;              // [L][R] after departures
  std::vector<std::vector<int>> migration_hosted_;    // [L][R] without departures of the open migration
  std::vector<int> in_memory_, migration_in_memory_;  // [R] likewise
  std::vector<Traveller> travellers_;
  ResidencyMigration open_;
  std::vector<ResidencyMigration> migrations_;
};

void MoveOrder::Add(const LayerResidency& to, int layer) {
  const LayerResidency& from = layers_[layer];
  const int experts = from.placement.num_experts;
  std::vector<std::vector<int32_t>> now(experts), then(experts);
  ForEachReplica(from.placement, [&](int32_t device, int32_t expert) { now[expert].push_back(device); });
  ForEachReplica(to.placement, [&](int32_t device, int32_t expert) { then[expert].push_back(device); });
  for (int expert = 0; expert < experts; ++expert) {
    Traveller traveller{
        layer, expert, std::move(now[expert]), std::move(then[expert]), from.offloaded[expert], to.offloaded[expert]};
    if (!traveller.Arrived()) travellers_.push_back(std::move(traveller));
  }
}

void MoveOrder::Depart(MoveKind kind, int device, Traveller* traveller) {
  const auto& slots = layers_[traveller->layer].placement.slots[device];
  const auto slot = std::find(slots.begin(), slots.end(), traveller->expert) - slots.begin();
  open_.departures.push_back({kind, traveller->layer, traveller->expert, device, static_cast<int32_t>(slot)});
  traveller->departed = static_cast<int>(migrations_.size());
  if (!traveller->offloaded) --in_memory_[device];
  if (kind == MoveKind::kOffload) {
    traveller->offloaded = true;
    return;
  }
  --hosted_[traveller->layer][device];
  traveller->now.erase(std::find(traveller->now.begin(), traveller->now.end(), device));
}

void MoveOrder::DepartWhatMay(Traveller* traveller) {
  for (size_t host = traveller->now.size(); host-- > 0 && traveller->now.size() > 1;) {
    const int device = traveller->now[host];
    if (!Contains(traveller->then, device)) Depart(MoveKind::kRelease, device, traveller);
  }
  if (traveller->now.size() == 1 && traveller->offloaded_then && !traveller->offloaded) {
    Depart(MoveKind::kOffload, traveller->now[0], traveller);
  }
}

bool MoveOrder::FitsMigration(const ResidencyMove& move, const Traveller& traveller) const {
  // An expert that departs somewhere in this migration has to have done so before it arrives elsewhere.
  if (traveller.departed == static_cast<int>(migrations_.size())) return false;
  if (NeedsMemory(move.kind) && migration_in_memory_[move.device] > limits_.device_slots) return false;
  return !NeedsSlot(move.kind) || migration_hosted_[move.layer][move.device] <= limits_.layer_slots;
}

bool MoveOrder::Overfills(const ResidencyMove& move) const {
  return (NeedsMemory(move.kind) && in_memory_[move.device] >= limits_.device_slots) ||
         (NeedsSlot(move.kind) && hosted_[move.layer][move.device] >= limits_.layer_slots);
}

void MoveOrder::Arrive(ResidencyMove move, Traveller* traveller) {
  if (!FitsMigration(move, *traveller)) CloseMigration();
  auto& slots = layers_[move.layer].placement.slots[move.device];
  if (NeedsSlot(move.kind)) {
    const auto empty = std::find(slots.begin(), slots.end(), kEmptySlot);
    SY_CHECK(empty != slots.end());
    *empty = move.expert;
    move.slot = static_cast<int32_t>(empty - slots.begin());
    ++hosted_[move.layer][move.device];
    ++migration_hosted_[move.layer][move.device];
    traveller->now.insert(std::lower_bound(traveller->now.begin(), traveller->now.end(), move.device), move.device);
  } else {
    move.slot = static_cast<int32_t>(std::find(slots.begin(), slots.end(), move.expert) - slots.begin());
    traveller->offloaded = false;
  }
  if (NeedsMemory(move.kind)) {
    ++in_memory_[move.device];
    ++migration_in_memory_[move.device];
  }
  open_.arrivals.push_back(move);
}

Traveller* MoveOrder::MustLeave() {
  for (Traveller& traveller : travellers_) {
    if (traveller.now.size() != 1 || traveller.Arrived()) continue;
    const int device = traveller.now[0];
    if (Contains(traveller.then, device)) continue;
    const bool memory = !traveller.offloaded && in_memory_[device] > limits_.device_slots;
    const bool table = hosted_[traveller.layer][device] > limits_.layer_slots;
    // Where a layer's slots are exceeded, too, only an expert of that layer frees both.
    if (table) return &traveller;
    if (memory && std::none_of(hosted_.begin(), hosted_.end(),
                               [&](const std::vector<int>& hosted) { return hosted[device] > limits_.layer_slots; })) {
      return &traveller;
    }
  }
  return nullptr;
}

Traveller* MoveOrder::Choose() {
  if (Traveller* leaving = MustLeave()) return leaving;
  Traveller *first = nullptr, *fits = nullptr;
  for (Traveller& traveller : travellers_) {
    const auto move = traveller.NextArrival();
    if (!move) continue;
    if (first == nullptr) first = &traveller;
    if (!FitsMigration(*move, traveller)) continue;
    if (!Overfills(*move)) return &traveller;
    if (fits == nullptr) fits = &traveller;
  }
  return fits != nullptr ? fits : first;
}

void MoveOrder::CloseMigration() {
  for (const ResidencyMove& move : open_.departures) {
    if (move.kind == MoveKind::kRelease) layers_[move.layer].placement.slots[move.device][move.slot] = kEmptySlot;
  }
  migration_hosted_ = hosted_;
  migration_in_memory_ = in_memory_;
  if (!open_.arrivals.empty() || !open_.departures.empty()) migrations_.push_back(std::exchange(open_, {}));
}

void MoveOrder::Run() {
  for (Traveller& traveller : travellers_) DepartWhatMay(&traveller);
  while (Traveller* traveller = Choose()) {
    const auto move = traveller->NextArrival();
    SY_CHECK(move.has_value());
    Arrive(*move, traveller);
    DepartWhatMay(traveller);
  }
  CloseMigration();
  for (const Traveller& traveller : travellers_) {
    SY_CHECK(traveller.Arrived());
    layers_[traveller.layer].offloaded[traveller.expert] = traveller.offloaded;
  }
}

}  // namespace

std::vector<ResidencyMigration> OrderMoves(const std::vector<LayerResidency>& from, const ResidencyLimits& limits,
                                           const std::vector<int>& layer_order, std::vector<LayerResidency>* to) {
  SY_CHECK_EQ(from.size(), to->size());
  if (from.empty()) return {};
  MoveOrder order(from, limits);
  for (const int layer : layer_order) order.Add((*to)[layer], layer);
  order.Run();
  *to = order.TakeLayers();
  return order.TakeMigrations();
}

}  // namespace switchyard::placement
