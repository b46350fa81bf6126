// Runs seeds of the simulation; README.md.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/base/flags/program_flags.h"
#include "tests/simulation/simulation.h"

namespace switchyard::simulation {
namespace {

struct SimulationFlags {
  std::string seeds = "1..1000";
  int64_t seed = -1;
  int jobs = 2;
  int most_violations = 5;
  bool same_twice = false;
  std::string plant;
  bool find = false;
};

struct Tally {
  int64_t seeds = 0, violations = 0;
  double virtual_seconds = 0;
};

volatile sig_atomic_t seed_low = 0, seed_high = 0;  // of the seed that runs, for the handler

// A failed check of production code: the seed is known all the same.
void OnCrash(int signal) {
  const uint64_t seed = static_cast<uint64_t>(static_cast<uint32_t>(seed_high)) << 32 | static_cast<uint32_t>(seed_low);
  char line[96];
  const int length =
      std::snprintf(line, sizeof(line), "simulation --seed=%llu   # VIOLATION: the program ends with signal %d\n",
                    static_cast<unsigned long long>(seed), signal);
  if (write(STDOUT_FILENO, line, static_cast<size_t>(length)) < 0) _exit(2);
  _exit(2);
}

std::unique_ptr<const text::TextProcessor> NoText() {
  char folder[] = "/tmp/simulation.XXXXXX";
  server::ServerConfig config;
  if (mkdtemp(folder) == nullptr) return nullptr;
  config.model = folder;
  absl::StatusOr<std::unique_ptr<const text::TextProcessor>> text = text::TextProcessor::Load(config);
  std::filesystem::remove_all(folder);
  if (text.ok()) return *std::move(text);
  std::fprintf(stderr, "simulation: %s\n", std::string(text.status().message()).c_str());
  return nullptr;
}

bool ParseSeeds(const std::string& text, int64_t* first, int64_t* last) {
  const std::vector<std::string> parts = absl::StrSplit(text, "..");
  if (parts.size() == 1) {
    *first = 1;
    return absl::SimpleAtoi(parts[0], last) && *last >= 1;
  }
  return parts.size() == 2 && absl::SimpleAtoi(parts[0], first) && absl::SimpleAtoi(parts[1], last) && *first >= 0 &&
         *first <= *last;
}

Outcome RunOne(int64_t seed, bool trace, const ServerProcess::Shared& shared) {
  seed_low = static_cast<int>(static_cast<uint32_t>(seed));
  seed_high = static_cast<int>(static_cast<uint32_t>(seed >> 32));
  return RunSeed(static_cast<uint64_t>(seed), trace, shared);
}

void Report(int64_t seed, const std::string& violation) {
  std::printf("simulation --seed=%lld   # VIOLATION: %s\n", static_cast<long long>(seed), violation.c_str());
  std::fflush(stdout);
}

Tally RunSeeds(int64_t first, int64_t last, int64_t stride, const SimulationFlags& flags,
               const ServerProcess::Shared& shared) {
  Tally tally;
  for (int64_t seed = first; seed <= last && tally.violations < flags.most_violations; seed += stride) {
    Outcome outcome = RunOne(seed, /*trace=*/false, shared);
    if (flags.same_twice) {
      const Outcome again = RunOne(seed, /*trace=*/false, shared);
      if (again.hash != outcome.hash) outcome.violation = "two runs of one seed have different histories";
    }
    ++tally.seeds;
    tally.virtual_seconds += absl::ToDoubleSeconds(outcome.virtual_time);
    if (outcome.violation.empty()) continue;
    ++tally.violations;
    Report(seed, outcome.violation);
  }
  return tally;
}

// Each process takes every jobs-th seed.  Returns how many ended badly without a word.
int RunInProcesses(int64_t first, int64_t last, const SimulationFlags& flags, const ServerProcess::Shared& shared,
                   Tally* total) {
  std::vector<std::pair<pid_t, int>> children;
  for (int job = 0; job < flags.jobs; ++job) {
    int ends[2];
    if (pipe(ends) != 0) return 1;
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      close(ends[0]);
      // What production logs as errors is the weather here; the replay of a seed shows it.
      if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
      const Tally tally = RunSeeds(first + job, last, flags.jobs, flags, shared);
      _exit(write(ends[1], &tally, sizeof(tally)) == sizeof(tally) ? 0 : 1);
    }
    close(ends[1]);
    children.emplace_back(child, ends[0]);
  }
  int bad = 0;
  for (const auto& [child, end] : children) {
    Tally tally;
    const bool whole = read(end, &tally, sizeof(tally)) == sizeof(tally);
    close(end);
    int status = 0;
    waitpid(child, &status, 0);
    bad += whole && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
    if (!whole) continue;
    total->seeds += tally.seeds;
    total->violations += tally.violations;
    total->virtual_seconds += tally.virtual_seconds;
  }
  return bad;
}

// The program beside this one with that bug.
int RunPlant(const std::string& self, const SimulationFlags& flags) {
  const std::string program = absl::StrCat(self, "_", flags.plant);
  const std::string seeds = absl::StrCat("--seeds=", flags.seeds);
  const std::string what = flags.seed >= 0 ? absl::StrCat("--seed=", flags.seed) : "--find";
  execl(program.c_str(), program.c_str(), seeds.c_str(), what.c_str(), nullptr);
  std::fprintf(stderr, "simulation: --plant=%s: cannot run %s\n", flags.plant.c_str(), program.c_str());
  return 2;
}

int Main(int argc, char** argv) {
  SimulationFlags flags;
  FlagSet set;
  set.BeginGroup("Flags");
  set.Add("seeds=RANGE", &flags.seeds, "seeds to run: FROM..TO, or N for 1..N");
  set.Add("seed=N", &flags.seed, "runs this seed alone, and prints its history");
  set.Add("jobs=N", &flags.jobs, "processes").Range(1, 256);
  set.Add("most_violations=N", &flags.most_violations, "ends a process after that many").Range(1, 1000000);
  set.Add("same_twice", &flags.same_twice, "runs each seed twice, and compares the histories");
  set.Add("plant=NAME", &flags.plant, "runs the program with that planted bug until it is found (CMakeLists.txt)");
  set.Add("find", &flags.find, "a violation is what is wanted: succeeds with the first, but not with a crash");
  ParseFlagsOrExit(argc, argv, {"simulation", "", "Runs the control plane in virtual time under faults (README.md)."},
                   &set);
  int64_t first = 0, last = 0;
  if (!ParseSeeds(flags.seeds, &first, &last)) {
    std::fprintf(stderr, "simulation: --seeds=%s: must be FROM..TO or N\n", flags.seeds.c_str());
    return 2;
  }
  if (!flags.plant.empty()) return RunPlant(argv[0], flags);
  setenv("SY_LOG", "error", /*overwrite=*/0);
  // Debian's Abseil looks for deadlocks in every lock: production turns it off, too.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) ::signal(signal, OnCrash);
  const std::unique_ptr<const text::TextProcessor> text = NoText();
  if (text == nullptr) return 2;
  server::ServerMetrics metrics("simulated");
  const ServerProcess::Shared shared = {text.get(), &metrics};
  if (flags.seed >= 0) {
    const Outcome outcome = RunOne(flags.seed, /*trace=*/true, shared);
    std::printf("seed %lld: history %016llx, %.1f s of virtual time\n", static_cast<long long>(flags.seed),
                static_cast<unsigned long long>(outcome.hash), absl::ToDoubleSeconds(outcome.virtual_time));
    if (!outcome.violation.empty()) Report(flags.seed, outcome.violation);
    return outcome.violation.empty() ? 0 : 1;
  }
  if (flags.find) flags.jobs = flags.most_violations = 1;
  Tally total;
  std::fflush(stdout);
  timespec begun = {}, ended = {};
  clock_gettime(CLOCK_MONOTONIC, &begun);
  const int bad = RunInProcesses(first, last, flags, shared, &total);
  clock_gettime(CLOCK_MONOTONIC, &ended);
  const double seconds =
      static_cast<double>(ended.tv_sec - begun.tv_sec) + 1e-9 * static_cast<double>(ended.tv_nsec - begun.tv_nsec);
  std::printf("%lld seeds, %lld violations; %.1f s, %.2f ms a seed and process; %.1f hours of virtual time\n",
              static_cast<long long>(total.seeds), static_cast<long long>(total.violations + bad), seconds,
              1e3 * seconds * flags.jobs / static_cast<double>(std::max<int64_t>(total.seeds, 1)),
              total.virtual_seconds / 3600);
  // A process that ended without a word has found nothing.
  return bad == 0 && (total.violations > 0) == flags.find ? 0 : 1;
}

}  // namespace
}  // namespace switchyard::simulation

int main(int argc, char** argv) { return switchyard::simulation::Main(argc, argv); }
