// Measures the GPU's kernels, MoE layers and whole models: a line of JSON each on standard output, for gpu_report.py.
//
//   gpu_bench [--quick] [--tiny] [--seconds=N] [--only=PART[,PART...]]      PART: ceilings products rows elements
//   exchange attention moe models
//
// --tiny is for the CUDA emulation: small shapes, answers checked, no times.  Every answer is checked; a wrong one has
// a line in place of its figure, and makes status 1 at the end.  What would begin after N seconds is left out.  Without
// a GPU: one line, status 77.  (--spoil=TEXT: what has TEXT in its name counts as wrong.)
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/bench/gpu/parts.h"
#include "workers/tensor/device_backend.h"

namespace switchyard {
namespace {

struct Part {
  const char* name;
  absl::Status (*run)(Bench* bench);
};
constexpr Part kParts[] = {{"ceilings", BenchCeilings}, {"products", BenchProducts}, {"rows", BenchRowOps},
                           {"elements", BenchElements}, {"exchange", BenchExchange}, {"attention", BenchAttention},
                           {"moe", BenchMoe},           {"models", BenchModels}};

// The largest matrix: a vocabulary's, or a gate and up of Mixtral.
constexpr int64_t kPoolElements = 330 << 20, kTinyPoolElements = 1 << 17;

bool Parse(int argc, char** argv, BenchOptions* options) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (arg == "--quick") {
      options->quick = true;
    } else if (arg == "--tiny") {
      options->tiny = true;
    } else if (absl::ConsumePrefix(&arg, "--only=")) {
      options->only = absl::StrSplit(arg, ',');
    } else if (absl::ConsumePrefix(&arg, "--spoil=")) {
      options->spoil = std::string(arg);
    } else if (int64_t seconds; absl::ConsumePrefix(&arg, "--seconds=") && absl::SimpleAtoi(arg, &seconds)) {
      options->limit = absl::Seconds(seconds);
    } else {
      std::fprintf(stderr, "gpu_bench: cannot take %s; flags: --quick --tiny --seconds=N --only=PART,...\n", argv[i]);
      return false;
    }
  }
  for (const std::string& name : options->only) {
    bool known = false;
    for (const Part& part : kParts) known |= name == part.name;
    if (known) continue;
    std::fprintf(stderr, "gpu_bench: no part %s; parts:", name.c_str());
    for (const Part& part : kParts) std::fprintf(stderr, " %s", part.name);
    std::fprintf(stderr, "\n");
    return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  BenchOptions options;
  if (!Parse(argc, argv, &options)) return 2;
  static_cast<void>(TestDevice());
  if (RegisteredBackend(DeviceKind::kCuda).NumDevices() == 0) {
    std::fprintf(stderr, "gpu_bench: no GPU here\n");
    return 77;
  }
  if (DeviceIsEmulated() && !options.tiny) {
    std::fprintf(stderr, "gpu_bench: the emulation has no speed to measure: --tiny\n");
    return 2;
  }
  Bench bench(options, options.tiny ? kTinyPoolElements : kPoolElements);
  const auto device = RegisteredBackend(DeviceKind::kCuda).Describe(0);
  if (!device.ok()) {
    std::fprintf(stderr, "gpu_bench: %s\n", device.status().ToString().c_str());
    return 1;
  }
  bench.Emit({{"kind", "device"}, {"name", device->name}, {"capability", device->capability}});
  for (const Part& part : kParts) {
    if (!bench.Wants(part.name)) continue;
    std::fprintf(stderr, "gpu_bench: %s\n", part.name);
    if (const absl::Status status = part.run(&bench); !status.ok()) {
      bench.Emit({{"kind", "wrong"}, {"what", part.name}, {"reason", std::string(status.message())}});
      return 1;
    }
  }
  return bench.num_wrong() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
