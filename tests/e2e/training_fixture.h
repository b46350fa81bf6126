// Training jobs of real servers and workers, for end-to-end tests: folders with a model and texts, a server that can be
// killed and started again on them, and the calls.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "switchyard/v1/training.grpc.pb.h"
#include "tests/e2e/harness.h"

namespace switchyard {

inline constexpr absl::Duration kJobLimit = absl::Seconds(240);

class TrainingServer {
 public:
  // Makes the roots: datasets/text.jsonl (this repository's own text), checkpoints/demo (the demo model),
  // checkpoints/tiny (its architecture, made small) and checkpoints/gpt2 (a GPT-2 with experts, as small, whose routers
  // have biases). flags: further ones of switchyard-server.
  // serving_workers: 0 = the server only trains.
  explicit TrainingServer(int train_workers = 2, std::vector<std::string> flags = {}, int serving_workers = 1);
  ~TrainingServer();

  // False, with a test failure, where the server does not start.
  bool Start();
  // SIGKILL: its workers die with it.
  void Kill();
  TestServer* server() { return server_.get(); }

  // Of the tiny model: 24 steps of 4 sequences of 32 tokens, a checkpoint every 4 steps.
  static v1::JobSpec TinySpec();
  absl::StatusOr<v1::Job> Submit(const v1::JobSpec& spec, const std::string& request_id = "");
  absl::StatusOr<v1::Job> Fork(const v1::ForkJobRequest& request);
  absl::StatusOr<v1::Job> Get(const std::string& id);
  absl::Status Pause(const std::string& id);
  absl::Status Resume(const std::string& id);
  absl::Status Cancel(const std::string& id);
  // The job as soon as it is so, or as it is after kJobLimit.
  template <class DoneFn>
  v1::Job WaitFor(const std::string& id, DoneFn done) {
    v1::Job job;
    WaitUntil(
        [&] {
          if (absl::StatusOr<v1::Job> seen = Get(id); seen.ok()) job = *seen;
          return done(job);
        },
        kJobLimit);
    return job;
  }
  v1::Job WaitUntilIn(const std::string& id, v1::JobState state);

  // Processes of training workers.
  std::vector<pid_t> TrainWorkerPids();
  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path job_folder(const std::string& id) const { return root_ / "checkpoints" / id; }
  // The files of a checkpoint that two runs of the same schedule have alike: weights, optimizer, state.
  static std::map<std::string, std::string> Contents(const std::filesystem::path& checkpoint);

 private:
  std::unique_ptr<v1::TrainingService::Stub> Stub();

  const int train_workers_, serving_workers_;
  const std::vector<std::string> flags_;
  std::filesystem::path root_;
  std::unique_ptr<TestServer> server_;
};

}  // namespace switchyard
