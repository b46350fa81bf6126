#include "workers/model/config/rope_reader.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/quote.h"

namespace switchyard::model {
namespace {

constexpr double kHuge = 1e12;

bool ReadKind(ConfigReader& scaling, const std::string& key, ops::RopeKind* kind) {
  const std::string name = scaling.String(key, "default");
  if (name == "default") {
    *kind = ops::RopeKind::kDefault;
  } else if (name == "linear") {
    *kind = ops::RopeKind::kLinear;
  } else if (name == "yarn") {
    *kind = ops::RopeKind::kYarn;
  } else if (name == "longrope" || name == "su") {  // "su": its name in early Phi-3 configs
    *kind = ops::RopeKind::kLongRope;
  } else if (name == "llama3") {
    *kind = ops::RopeKind::kLlama3;
  } else {
    scaling.Problem(
        key, absl::StrCat("unknown RoPE \"", Excerpt(name), "\"; known: default, linear, yarn, longrope, llama3"));
    return false;
  }
  return true;
}

void ReadYarn(ConfigReader& scaling, ops::RopeConfig* rope) {
  rope->beta_fast = scaling.Number("beta_fast", 32.0, 0, kHuge, /*open=*/true);
  rope->beta_slow = scaling.Number("beta_slow", 1.0, 0, kHuge, /*open=*/true);
  rope->truncate = scaling.Bool("truncate", true);
  rope->mscale = scaling.Number("mscale", 0.0, 0, kHuge);
  rope->mscale_all_dim = scaling.Number("mscale_all_dim", 0.0, 0, kHuge);
}

void ReadLongRope(ConfigReader& scaling, ops::RopeConfig* rope) {
  rope->short_factor = scaling.Numbers("short_factor");
  rope->long_factor = scaling.Numbers("long_factor");
  for (const auto& [key, factors] :
       {std::make_pair("short_factor", &rope->short_factor), std::make_pair("long_factor", &rope->long_factor)}) {
    if (!scaling.AllGood({key})) continue;
    if (static_cast<int64_t>(factors->size()) != rope->rotary_dim / 2) {
      scaling.Problem(key, absl::StrCat("expected ", rope->rotary_dim / 2, " numbers, found ", factors->size()));
    }
    if (std::any_of(factors->begin(), factors->end(), [](double f) { return f <= 0; })) {
      scaling.Problem(key, "expected positive numbers");
    }
  }
}

void ReadScaling(ConfigReader& scaling, double theta, const ModelConfig& config, double original_max,
                 ops::RopeConfig* rope) {
  const std::string kind_key = scaling.FirstOf({"rope_type", "type"});
  rope->theta = scaling.Number("rope_theta", theta, 0, kHuge, /*open=*/true);
  const double partial = scaling.Number("partial_rotary_factor", 1.0, 0, 1, /*open=*/true);
  rope->rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * partial);
  if (rope->rotary_dim < 2 || rope->rotary_dim % 2 != 0) {
    scaling.Problem("partial_rotary_factor", absl::StrCat("rotates ", rope->rotary_dim, " of ", config.head_dim,
                                                          " dims; it must be an even number"));
  }
  if (!ReadKind(scaling, kind_key, &rope->kind) || rope->kind == ops::RopeKind::kDefault) return;
  const double context = static_cast<double>(config.context);
  rope->original_max_positions =
      original_max > 0 ? original_max : scaling.Number("original_max_position_embeddings", context, 1, kHuge);
  std::optional<double> factor;
  if (rope->kind == ops::RopeKind::kYarn || rope->kind == ops::RopeKind::kLongRope)
    factor = context / rope->original_max_positions;
  rope->factor = scaling.Number("factor", factor, 0, kHuge, /*open=*/true);
  if (rope->kind == ops::RopeKind::kYarn || rope->kind == ops::RopeKind::kLongRope) {
    if (scaling.Has("attention_factor")) {
      rope->attention_factor = scaling.Number("attention_factor", 1.0, 0, kHuge, /*open=*/true);
    }
  }
  if (rope->kind == ops::RopeKind::kYarn) ReadYarn(scaling, rope);
  if (rope->kind == ops::RopeKind::kLongRope) ReadLongRope(scaling, rope);
  if (rope->kind == ops::RopeKind::kLlama3) {
    rope->low_freq_factor = scaling.Number("low_freq_factor", std::nullopt, 0, kHuge, /*open=*/true);
    rope->high_freq_factor = scaling.Number("high_freq_factor", std::nullopt, 0, kHuge, /*open=*/true);
    if (scaling.AllGood({"low_freq_factor", "high_freq_factor"}) && rope->high_freq_factor <= rope->low_freq_factor) {
      scaling.Problem("high_freq_factor", absl::StrCat("must exceed low_freq_factor ", rope->low_freq_factor));
    }
  }
}

// v5 may give one object for each layer type.  The four families use one RoPE, so they have to agree.
const nlohmann::json* Unnest(ConfigReader& reader, const std::string& key, const nlohmann::json* object) {
  const nlohmann::json* first = nullptr;
  for (const char* type : {"full_attention", "sliding_attention"}) {
    const auto it = object->find(type);
    if (it == object->end() || it->is_null()) continue;
    if (!it->is_object()) {
      reader.Problem(key, absl::StrCat(type, " is no object"));
    } else if (first != nullptr && *first != *it) {
      reader.Problem(key, "layer types with different RoPE parameters are not supported");
    } else {
      first = &*it;
    }
  }
  return first == nullptr ? object : first;
}

}  // namespace

void ReadRope(ConfigReader& reader, double default_theta, ModelConfig* config) {
  const std::string key = reader.FirstOf({"rope_parameters", "rope_scaling"});
  const double theta = reader.Number("rope_theta", default_theta, 0, kHuge, /*open=*/true);
  const double original_max = reader.Number("original_max_position_embeddings", 0.0, 0, kHuge);
  const nlohmann::json empty = nlohmann::json::object();
  const nlohmann::json* object = reader.Object(key);
  if (object == nullptr) object = &empty;
  // How many dims rotate, and how far, follows from these: nothing true can be said without them.
  if (!reader.AllGood({"head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings"})) return;
  ConfigReader scaling(*Unnest(reader, key, object), "");
  ReadScaling(scaling, theta, *config, original_max, &config->rope);
  scaling.CheckSpelling();
  reader.Adopt(key, scaling);
}

}  // namespace switchyard::model
