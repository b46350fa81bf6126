// The header of a safetensors file: JSON text → tensors, every claim checked.  Pure; see safetensors.h for the reader.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/safetensors.h"

namespace switchyard {

// `data_begin`: where the data starts in the file (8 + header length); `data_bytes`: how many follow.  The tensors come
// by rising offset and tile the data exactly, without hole or overlap.
// Errors: InvalidArgument 'header: …' or 'tensor "x": …'.
absl::StatusOr<std::vector<std::pair<std::string, TensorEntry>>> ParseSafetensorsHeader(absl::string_view json,
                                                                                        int64_t data_begin,
                                                                                        int64_t data_bytes);

}  // namespace switchyard
