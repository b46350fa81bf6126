// The stand-in of CUDA's cuda_runtime.h: see tests/cuda_emulation/README.md.
#pragma once

#include "cuda_emulation/atomics.h"
#include "cuda_emulation/launch_api.h"
#include "cuda_emulation/math.h"
#include "cuda_emulation/qualifiers.h"
#include "cuda_emulation/runtime_api.h"
#include "cuda_emulation/warp.h"
