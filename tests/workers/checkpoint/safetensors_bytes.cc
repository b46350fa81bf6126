#include "tests/workers/checkpoint/safetensors_bytes.h"

#include "nlohmann/json.hpp"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {
namespace {

template <class Elem>
void Append(std::string* bytes, Elem value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string out;
  Append(&out, static_cast<uint64_t>(header.size()));
  return out + header + data;
}

std::string SafetensorsBytes(const std::map<std::string, WrittenTensor>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return SafetensorsBytes(header.dump(), data);
}

WrittenTensor FloatTensor(const std::string& dtype, std::vector<int64_t> shape, const std::vector<float>& values) {
  WrittenTensor out{dtype, std::move(shape), ""};
  for (const float value : values) {
    if (dtype == "F32") {
      Append(&out.bytes, value);
    } else if (dtype == "F64") {
      Append(&out.bytes, static_cast<double>(value));
    } else if (dtype == "BF16") {
      Append(&out.bytes, Bf16(value).bits);
    } else {
      Append(&out.bytes, Fp16(value).bits);
    }
  }
  return out;
}

}  // namespace switchyard::checkpoint
