// Writes safetensors files for tests: valid ones, and on request invalid ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace switchyard::checkpoint {

struct WrittenTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// 8 bytes of length, the header, the data.
std::string SafetensorsBytes(const std::string& header, const std::string& data);
// A file of these tensors in the order of their names.
std::string SafetensorsBytes(const std::map<std::string, WrittenTensor>& tensors);

// fp32 values as bytes of the dtype: "F32", "BF16", "F16" or "F64".
WrittenTensor FloatTensor(const std::string& dtype, std::vector<int64_t> shape, const std::vector<float>& values);

}  // namespace switchyard::checkpoint
