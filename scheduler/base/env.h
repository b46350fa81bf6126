// The one table of environment variables.  They are for debugging only; `--help` prints the table.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace switchyard {

struct EnvVar {
  const char* name;
  const char* default_value;
  const char* help;
};

inline constexpr EnvVar kEnvVars[] = {
    {"SY_LOG", "info", "lowest level that is logged: debug, info, warn, error"},
    {"SY_SYNC_OPS", "0", "1: wait for the device after every op, so that an error names the op that made it"},
    {"SY_CHECK_NAN", "0", "1: check every layer's output for NaN and Inf and fail the step that has one"},
    {"SY_DUMP_STEP", "", "directory: the server writes each step's plan and result there as text"},
    {"SY_ISA", "",
     "cap the CPU kernels' instruction set: amx, avx512_bf16, avx512, avx2, scalar (default: the best here)"},
};

// The variable's value or its default.  REQUIRES: name is in kEnvVars.
std::string EnvString(absl::string_view name);
bool EnvBool(absl::string_view name);
// The table as --help shows it.
std::string EnvHelp();

}  // namespace switchyard
