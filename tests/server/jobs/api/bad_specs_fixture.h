// Fixture of tests that submit bad specs: a row has one mistake and the answer that it gets.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "switchyard/v1/training.pb.h"
#include "tests/server/jobs/training_fixture.h"

namespace switchyard::server {

struct BadSpec {
  std::string name;
  std::function<void(v1::JobSpec*)> spoil;
  grpc::StatusCode code;
  std::string reason;
  std::string message;  // a part of it
};

inline constexpr auto kBad = grpc::StatusCode::INVALID_ARGUMENT;
inline constexpr auto kNone = grpc::StatusCode::NOT_FOUND;
inline constexpr auto kCannot = grpc::StatusCode::FAILED_PRECONDITION;

// Returns an edit that makes a spec train on preferences, of the dataset `path`, from the base checkpoint "based".
inline std::function<void(v1::JobSpec*)> Preferring(const char* path) {
  return [path](v1::JobSpec* spec) {
    spec->set_datasets(0, path);
    spec->clear_architecture();
    spec->set_base_checkpoint("based");
    spec->mutable_dpo()->set_beta(0.1);
  };
}

class BadSpecsTest : public TrainingTest {
 protected:
  // Submits each row by itself and expects its answer; at the end the server has no job.
  void ExpectEachIsRefused(const std::vector<BadSpec>& catalogue) {
    for (const BadSpec& bad : catalogue) {
      v1::SubmitJobRequest request = Request();
      bad.spoil(request.mutable_spec());
      v1::SubmitJobResponse response;
      const grpc::Status status = Submit(request, &response);
      EXPECT_EQ(status.error_code(), bad.code) << bad.name << ": " << status.error_message();
      EXPECT_EQ(rpc::ViewError(status).reason, bad.reason) << bad.name;
      EXPECT_THAT(status.error_message(), testing::HasSubstr(bad.message)) << bad.name;
      EXPECT_LE(status.error_message().size(), 2048u + 3) << bad.name;
    }
    v1::ListJobsResponse jobs;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->ListJobs(&context, v1::ListJobsRequest(), &jobs).ok());
    EXPECT_EQ(jobs.jobs_size(), 0) << "none of them was taken";
  }
};

}  // namespace switchyard::server
