// Forward declaration of the CLI's type of JSON values (json.h), for headers that only name it.
#pragma once

#include "nlohmann/json_fwd.hpp"

namespace switchyard::cli {

using Json = nlohmann::ordered_json;

}  // namespace switchyard::cli
