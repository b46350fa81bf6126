// The demo model as a GGUF file, as llama.cpp's converter and quantizer write one.
#pragma once

#include <string>

namespace switchyard {

struct DemoGguf {
  bool q8 = false;         // matrices of blocks of Q8_0, each of its scale; else BF16 as the model has them
  bool vocabulary = true;  // and chat template
};
// Aborts on errors: the demo model is a fixture.
std::string DemoGgufBytes(const DemoGguf& options);

}  // namespace switchyard
