// The demo model as a GGUF file, as llama.cpp's converter and quantizer write one.
#pragma once

#include <string>

namespace switchyard {

enum class DemoBlocks {
  kNone,   // BF16, as the model has its matrices
  kQ8,     // Q8_0
  kMixed,  // Q8_0, but gate and up of experts, and down in every other layer, Q4_0
};
struct DemoGguf {
  DemoBlocks blocks = DemoBlocks::kNone;
  bool vocabulary = true;  // and chat template
};
// Aborts on errors: the demo model is a fixture.
std::string DemoGgufBytes(const DemoGguf& options);

}  // namespace switchyard
