// Reads a config's RoPE parameters, in the spelling of transformers v4 (rope_theta and rope_scaling) or v5
// (rope_parameters, flat or one for each layer type).
#pragma once

#include "workers/model/config/config.h"
#include "workers/model/config/config_reader.h"

namespace switchyard::model {

// Sets config->rope.  REQUIRES: head_dim and context are set.  Problems go to the reader.
void ReadRope(ConfigReader& reader, double default_theta, ModelConfig* config);

}  // namespace switchyard::model
