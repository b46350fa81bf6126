// Where values of flags come from besides the command line: environment variables and a file.
//
// Both give settings for FlagSet::Fill, which leaves alone what a source before has set.  The order is: command line,
// environment, file.  The file is YAML, a map of flags:
//
//   model: /srv/models/mixtral   # names as in --help, with underscores or dashes
//   local_workers: 2
//   prefix_reuse: false
//
// Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/base/flags/flag_set.h"

namespace switchyard {

// "SWITCHYARD_MAX_NUM_SEQS" for max_num_seqs.
std::string VariableOf(absl::string_view flag_name);

// What the environment (as of execve: ends with null) has for flags of the table.  A variable without a value counts as
// none; others that begin with SWITCHYARD_ are left alone, as other programs and Kubernetes have some of their own.
std::vector<FlagSetting> EnvironmentSettings(const FlagSet& flags, const char* const* environment);
// Lines about variables that are left alone, but whose name is nearly that of a flag.
std::vector<std::string> MisspelledVariables(const FlagSet& flags, const char* const* environment);

// Every value of the file.  Names are not compared with any table.  InvalidArgument names file and line: if it cannot
// be read, is no YAML, no map of plain values (or of lists of them), or has a name twice.
absl::StatusOr<std::vector<FlagSetting>> ReadConfigFile(const std::string& path);

}  // namespace switchyard
