// What a benchmark's line of JSON says of the machine and the tree; "unknown" where that cannot be read.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace switchyard::bench {

// "model name" of /proc/cpuinfo.
inline std::string Processor() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// Of the working directory's tree.
inline std::string Commit() {
  char text[64] = "";
  if (FILE* git = popen("git rev-parse --short HEAD 2>/dev/null", "r")) {
    if (std::fscanf(git, "%63s", text) != 1) text[0] = '\0';
    pclose(git);
  }
  return text[0] == '\0' ? "unknown" : text;
}

// Of the last minute; -1 where the system does not say.
inline double LoadAverage() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

}  // namespace switchyard::bench
