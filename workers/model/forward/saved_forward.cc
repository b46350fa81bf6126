#include "workers/model/forward/saved_forward.h"

namespace switchyard::model {

SavedForward::Place::Place(const ModelConfig& config, DType dtype)
    : mid(AccDType(dtype), {config.hidden}),
      projected(dtype, {config.qkv_width()}),
      qkv(dtype, {config.qkv_width()}),
      attended(dtype, {config.q_width()}),
      sums(dtype, {ops::SumsWidth(config.activation, config.dense_intermediate)}),
      hidden(dtype, {config.dense_intermediate}) {}

SavedForward::SavedForward(const ModelConfig& config, DType dtype, SavePolicy policy)
    : config_(config), policy_(policy), router_statistics_(config.layers.size()) {
  for (int64_t i = 0; i < config.num_layers(); ++i) inputs_.emplace_back(AccDType(dtype), Shape{config.hidden});
  const int64_t places = policy == SavePolicy::kAll ? config.num_layers() : 1;
  for (int64_t i = 0; i < places; ++i) places_.push_back(std::make_unique<Place>(config, dtype));
}

SavedLayer SavedForward::layer(int64_t layer_idx) {
  SavedLayer layer;
  layer.residual_in = inputs_[layer_idx].Rows(num_rows_);
  Place& place = *places_[policy_ == SavePolicy::kAll ? layer_idx : 0];
  layer.residual_mid = place.mid.Rows(num_rows_);
  layer.qkv = place.qkv.Rows(num_rows_);
  if (config_.qk_norm != QkNorm::kNone || config_.clip_qkv > 0) layer.projected = place.projected.Rows(num_rows_);
  layer.attended = place.attended.Rows(num_rows_);
  if (config_.layers[layer_idx].moe) {
    layer.moe = &place.moe;
  } else {
    layer.dense_sums = place.sums.Rows(num_rows_);
    layer.dense_hidden = place.hidden.Rows(num_rows_);
  }
  return layer;
}

}  // namespace switchyard::model
