// switchyard-quantize: writes a checkpoint in few bits (quantize.h).  `switchyard quantize` becomes this program.
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/cores.h"
#include "scheduler/base/flags/program_flags.h"
#include "scheduler/base/flags/quantize_flags.h"
#include "scheduler/base/log.h"
#include "scheduler/base/process_guard.h"
#include "scheduler/base/version.h"
#include "workers/ops/core/isa.h"
#include "workers/quantize/quantize.h"

namespace switchyard::quantize {
namespace {

constexpr int kExitFailed = 1, kExitBadInput = 2;

std::atomic<int> signal_taken{0};
void TakeSignal(int number) { signal_taken = number; }

// An interrupted run removes what it has written; a file beyond a limit is an error and no signal.
void SetUpSignals() {
  struct sigaction taken = {};
  taken.sa_handler = TakeSignal;
  sigaction(SIGINT, &taken, nullptr);
  sigaction(SIGTERM, &taken, nullptr);
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
}

int Complain(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", kQuantizeProgram, std::string(status.message()).c_str());
  if (absl::IsCancelled(status)) return 128 + signal_taken;
  const bool is_input = absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsAlreadyExists(status) ||
                        absl::IsUnimplemented(status);
  return is_input ? kExitBadInput : kExitFailed;
}

// Bits before and after, of a byte where bytes are known, else of a token.
std::string BitsText(const QuantizeReport& report) {
  const bool bytes = report.held_out_bytes > 0;
  const auto count = static_cast<double>(bytes ? report.held_out_bytes : report.held_out_tokens);
  return absl::StrFormat(
      "calibrated by GPTQ on %d windows; experts rounded to nearest for want of rows: %d\n"
      "bits per %s of %d held-out tokens: %.4f before, %.4f after (%.4f of it)\n",
      report.samples, report.rounded_experts, bytes ? "byte" : "token", report.held_out_tokens,
      report.bits_before / count, report.bits_after / count, report.bits_after / report.bits_before);
}

double InMegabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

// Of this program; getrusage also counts what its process was before.  0: unknown.
int64_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (int64_t kilobytes = 0; word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

int Run(const QuantizeFlags& flags) {
  if (flags.format != "int4" && flags.format != "int8") {
    return Complain(absl::InvalidArgumentError(absl::StrCat("--format=", flags.format, ": must be int4 or int8")));
  }
  if (const absl::Status status = ops::CheckIsaSetting(); !status.ok()) return Complain(status);
  const QuantizeOptions options = {
      .model = flags.model,
      .output = flags.output,
      .format = {.bits = flags.format == "int4" ? 4 : 8, .group = flags.group_size},
      .threads = flags.threads > 0 ? flags.threads : UsableCores(),
      .dataset = flags.dataset,
      .samples = flags.samples,
      .length = flags.sequence,
      .dtype = flags.dtype,
      .stop = [] { return signal_taken != 0; },
      .say = [](absl::string_view line) { LogInfo(line); },
  };
  const absl::StatusOr<QuantizeReport> report = Quantize(options);
  if (!report.ok()) return Complain(report.status());
  std::fputs(absl::StrFormat("%s: %d matrices in %s, groups of %d\n"
                             "tensors: %.1f MB before, %.1f MB after (%.3f of it)\n"
                             "peak memory: %.1f MB\n",
                             flags.output, report->matrices, flags.format, flags.group_size,
                             InMegabytes(report->bytes_before), InMegabytes(report->bytes_after),
                             static_cast<double>(report->bytes_after) / static_cast<double>(report->bytes_before),
                             InMegabytes(PeakMemory()))
                 .c_str(),
             stdout);
  if (!flags.dataset.empty()) std::fputs(BitsText(*report).c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : kExitFailed;
}

}  // namespace
}  // namespace switchyard::quantize

int main(int argc, char** argv) {
  switchyard::QuantizeFlags values;
  switchyard::FlagSet flags;
  switchyard::AddQuantizeFlags(&values, &flags);
  switchyard::ParseFlagsOrExit(argc, argv,
                               {.name = switchyard::kQuantizeProgram,
                                .version = switchyard::Version(),
                                .summary = "writes a checkpoint with its matrices in 8 or 4 bits, for this\n"
                                           "server, vLLM and transformers",
                                .alone_with = switchyard::kOfQuantize},
                               &flags);
  switchyard::SetLogName("quantize");
  switchyard::ForbidPrivilegesAndDumps();
  switchyard::quantize::SetUpSignals();
  return switchyard::quantize::Run(values);
}
