// What to say of a path that is no directory with a model, and what to do about it.  Thread-safe.
#pragma once

#include <string>

namespace switchyard {

// Of a GGUF file, a file of weights, a model's name on a hub, and of what is not there: "no such directory".
// REQUIRES: path is no directory.
std::string WhyNoModelDir(const std::string& path);

}  // namespace switchyard
