// Runs `switchyard train` against a TrainingService in this process.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_training.h"

namespace switchyard::cli {

// A job of 2000 steps in this state; with the progress of `step` unless that is 0.
inline v1::Job JobIn(v1::JobState state, int64_t step = 0) {
  v1::Job job;
  job.set_id("job-1");
  job.set_state(state);
  job.mutable_spec()->set_steps(2000);
  if (step == 0) return job;
  v1::TrainProgress* progress = job.mutable_progress();
  progress->set_step(step);
  progress->set_loss(3.25);
  progress->set_gradient_norm(0.875);
  progress->set_learning_rate(3e-4);
  progress->set_tokens_per_second(12345.4);
  return job;
}

class TrainCommandTest : public testing::Test {
 protected:
  TrainCommandTest() { training_.job = JobIn(v1::JOB_STATE_PENDING); }
  ~TrainCommandTest() override { std::remove(file_.c_str()); }

  client::CliRun Train(std::vector<std::string> args, const std::string& input = "") {
    args.insert(args.begin(), "train");
    args.push_back(training_.flag());
    return client::RunCliWith(args, input);
  }
  std::string SpecFile(const std::string& text) {
    std::ofstream(file_) << text;
    return "--spec=" + file_;
  }

  client::FakeTraining training_;
  const std::string file_ = absl::StrCat(testing::TempDir(), "/spec-", getpid(), ".json");
};

}  // namespace switchyard::cli
