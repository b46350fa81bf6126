// Layers as the background balancer hands them from plan to plan.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "server/balancer/pending_migration.h"

namespace switchyard::server {

inline LayerStates ShareLayers(std::vector<placement::Placement> layers) {
  LayerStates shared;
  for (auto& layer : layers) shared.push_back(std::make_shared<const placement::Placement>(std::move(layer)));
  return shared;
}

}  // namespace switchyard::server
