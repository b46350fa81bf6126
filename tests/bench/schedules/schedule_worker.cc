// One worker of `tests/bench/run.sh schedules`: rank --rank of the workers at --addresses, alone in its network
// namespace.
//
// All workers run the same programs in turns, so that what disturbs one disturbs all.  Each writes lines of JSON to
// --output.RANK: what the links take by themselves (probe), then a line for each (step, program, pass).
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/schedules/emulated_program.h"
#include "tests/bench/schedules/named_program.h"
#include "tests/bench/schedules/shape_flags.h"
#include "tests/bench/training/link_probe.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/tcp/socket_communicator.h"

ABSL_FLAG(int, rank, 0, "");
ABSL_FLAG(std::vector<std::string>, addresses, {}, "IPv4, of all workers");
ABSL_FLAG(std::string, output, "", "what results are written to, with the rank behind it; all ranks see the folder");
ABSL_FLAG(std::string, meeting, "", "an empty folder that all ranks see, where they find each other");
ABSL_FLAG(std::vector<std::string>, programs, {"ep:1"}, "named_program.h");
ABSL_FLAG(int, steps, 5, "of each program");
ABSL_FLAG(int, warm_up, 1, "steps that are not written");
ABSL_FLAG(int, probes, 5, "all-to-alls of each size; 0: none");
ABSL_FLAG(int, seed, 1, "of the order of programs");

namespace switchyard::bench {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

class Worker {
 public:
  absl::Status Run() {
    const simulator::Cluster cluster = ClusterOfFlags(static_cast<int>(absl::GetFlag(FLAGS_addresses).size()));
    const simulator::MoeLayerShape shape = LayerShapeOfFlags();
    out_.open(absl::StrCat(absl::GetFlag(FLAGS_output), ".", absl::GetFlag(FLAGS_rank)));
    RETURN_IF_ERROR(Connect());
    LayerGroups groups(all_.get());
    std::vector<NamedProgram> programs;
    for (const std::string& text : absl::GetFlag(FLAGS_programs)) {
      ASSIGN_OR_RETURN(NamedProgram program, ParseProgram(text));
      programs.push_back(std::move(program));
    }
    std::vector<std::unique_ptr<EmulatedProgram>> layers;
    for (const NamedProgram& program : programs) {
      std::unique_ptr<EmulatedProgram> layer;
      ASSIGN_OR_RETURN(layer, EmulatedProgram::Create(&program, cluster, shape, &groups, MonotonicNow() + kPatience));
      layers.push_back(std::move(layer));
    }
    if (const int rounds = absl::GetFlag(FLAGS_probes); rounds > 0) {
      const auto bytes = static_cast<int64_t>(shape.tokens * shape.rows_per_token * shape.hidden * shape.element_bytes);
      ASSIGN_OR_RETURN(const std::vector<Probe> probes, ProbeAllToAlls(all_.get(), bytes, rounds));
      for (const Probe& probe : probes)
        Write(absl::StrCat("\"probe\": \"", probe.what, "\", \"bytes\": ", probe.bytes), probe.begin, probe.end);
    }
    std::mt19937 random(static_cast<uint32_t>(absl::GetFlag(FLAGS_seed)));
    std::vector<size_t> order(programs.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const int warm_up = absl::GetFlag(FLAGS_warm_up);
    for (int step = -warm_up; step < absl::GetFlag(FLAGS_steps); ++step) {
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t next : order) {
        for (const pipeline::Pass pass : {pipeline::Pass::kForward, pipeline::Pass::kBackward})
          RETURN_IF_ERROR(RunOnce(step, programs[next].name, layers[next].get(), pass));
      }
    }
    // The first rank to leave would end the group for those that still send.
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> all_done,
                     all_->Barrier({.comm_class = comm::CommClass::kControl, .deadline = MonotonicNow() + kPatience}));
    RETURN_IF_ERROR(all_done->Wait());
    return out_.flush() ? absl::OkStatus() : absl::UnavailableError("results cannot be written");
  }

 private:
  absl::Status Connect() {
    const std::vector<std::string> addresses = absl::GetFlag(FLAGS_addresses);
    const int rank = absl::GetFlag(FLAGS_rank);
    test::DirectoryStore store(absl::GetFlag(FLAGS_meeting));
    ASSIGN_OR_RETURN(all_, comm::FormSocketGroup({.group = {.rank = rank,
                                                            .world = static_cast<int>(addresses.size()),
                                                            .epoch = 1,
                                                            .token = "schedules",
                                                            .address = addresses[static_cast<size_t>(rank)],
                                                            .deadline = MonotonicNow() + kPatience}},
                                                 &store));
    return absl::OkStatus();
  }

  absl::Status RunOnce(int step, const std::string& name, EmulatedProgram* layer, pipeline::Pass pass) {
    const absl::Time deadline = MonotonicNow() + kPatience;
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> together,
                     all_->Barrier({.comm_class = comm::CommClass::kControl, .deadline = deadline}));
    RETURN_IF_ERROR(together->Wait());
    const absl::Time begin = absl::Now();
    RETURN_IF_ERROR(layer->Run(pass, deadline));
    if (step < 0) return absl::OkStatus();
    Write(absl::StrCat("\"program\": \"", name, "\", \"step\": ", step, ", \"pass\": \"",
                       pass == pipeline::Pass::kForward ? "forward" : "backward", "\""),
          begin, absl::Now());
    return absl::OkStatus();
  }

  void Write(const std::string& what, absl::Time begin, absl::Time end) {
    out_ << "{" << what << ", \"begin_us\": " << absl::ToUnixMicros(begin)
         << ", \"end_us\": " << absl::ToUnixMicros(end) << "}\n";
  }

  std::ofstream out_;
  std::unique_ptr<comm::Communicator> all_;
};

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = switchyard::bench::Worker().Run();
  if (!status.ok()) std::cerr << "schedule_worker " << absl::GetFlag(FLAGS_rank) << ": " << status << std::endl;
  return status.ok() ? 0 : 1;
}
