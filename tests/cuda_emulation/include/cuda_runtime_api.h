// The stand-in of CUDA's cuda_runtime_api.h.
#pragma once

#include "cuda_runtime.h"
