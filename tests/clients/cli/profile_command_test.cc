#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/profile_bundle.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/routing_server.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ProfileCommandTest : public testing::Test {
 protected:
  ProfileCommandTest() : dir_(absl::StrCat(testing::TempDir(), "/profile-", getpid())) {
    std::filesystem::create_directory(dir_);
    client::RouteByTokenAndPosition(&server_);
  }
  ~ProfileCommandTest() override { std::filesystem::remove_all(dir_); }

  std::string At(const std::string& name) const { return absl::StrCat(dir_, "/", name); }
  client::CliRun Make(const std::string& text, const std::string& name) {
    return client::RunCliWith(
        {"profile", server_.flag(), "--text=" + text, "--max_tokens=3", absl::StrCat("--output=", At(name))});
  }
  absl::StatusOr<popularity::ProfileBundle> Read(const std::string& name) {
    std::ifstream file(At(name), std::ios::binary);
    return popularity::ProfileBundle::Parse(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  int NumFiles() const { return static_cast<int>(std::distance(std::filesystem::directory_iterator(dir_), {})); }

  client::FakeServer server_;
  const std::string dir_;
};

TEST_F(ProfileCommandTest, DocumentsAreCountedByPhase) {
  const client::CliRun run = Make("aab", "one");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("4 profiles, 0 probe maps"));
  const absl::StatusOr<popularity::ProfileBundle> bundle = Read("one");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_EQ(bundle->model, "weights");
  // Tokens a a b, then 100 and 101, whose experts are returned.
  EXPECT_EQ(bundle->profiles[0].MarginalCounts(0)[1], 2);
  EXPECT_EQ(bundle->profiles[0].MarginalCounts(0)[2], 1);
  EXPECT_EQ(bundle->profiles[2].identity().phase, popularity::Phase::kDecode);
  EXPECT_EQ(bundle->profiles[2].num_tokens(0), 2);
  EXPECT_EQ(NumFiles(), 1) << "the trace is gone";
}

TEST_F(ProfileCommandTest, ProfilesAreMergedAndShown) {
  ASSERT_EQ(Make("aab", "one").exit_code, 0);
  ASSERT_EQ(Make("bb", "two").exit_code, 0);
  const client::CliRun merged =
      client::RunCliWith({"profile", "merge", At("one"), At("two"), absl::StrCat("--output=", At("both"))});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_EQ(Read("both")->profiles[0].MarginalCounts(0)[2], 3);
  const client::CliRun shown = client::RunCliWith({"profile", "show", At("both")});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("model: weights\n"), HasSubstr("prefill, path of 3 layers:\n"),
                               HasSubstr("layer 0: 5 tokens, 0 contexts, busiest expert 2 at 2.40 times the mean"),
                               HasSubstr("decode, token:\n")));
}

TEST_F(ProfileCommandTest, OfATraceNoServerIsAsked) {
  ASSERT_EQ(client::RunCliWith({"trace", "record", server_.flag(), "--text=aab", "--output=" + At("trace")}).exit_code,
            0);
  const client::CliRun run = client::RunCliWith(
      {"profile", "--server=127.0.0.1:1", "--trace=" + At("trace"), absl::StrCat("--output=", At("one"))});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Read("one")->profiles.size(), 2u);
}

TEST_F(ProfileCommandTest, PathsAreOfTheLengthThatIsAskedFor) {
  ASSERT_EQ(Make("aab", "three").exit_code, 0);
  const auto make = [&](const std::string& length) {
    return client::RunCliWith({"profile", server_.flag(), "--text=aab", "--max_tokens=3", "--path_length=" + length,
                               absl::StrCat("--output=", At(length))});
  };
  ASSERT_EQ(make("6").exit_code, 0);
  EXPECT_EQ(Read("6")->profiles[0].identity().path_length, 6);
  EXPECT_EQ(Read("6")->profiles[1].identity().path_length, 1) << "of token ids";
  EXPECT_THAT(make("7").err, AllOf(HasSubstr("--path_length"), HasSubstr("=7: must be a number from 1 to 6")));
  EXPECT_NE(make("0").exit_code, 0);
  const client::CliRun merged =
      client::RunCliWith({"profile", "merge", At("three"), At("6"), absl::StrCat("--output=", At("both"))});
  EXPECT_EQ(merged.exit_code, 2);
  EXPECT_THAT(merged.err, HasSubstr("path_length is 6, this model's profile has 3"));
}

TEST_F(ProfileCommandTest, OfOtherModelsNothingIsMerged) {
  ASSERT_EQ(Make("aab", "one").exit_code, 0);
  server_.model.set_weights_hash("others");
  ASSERT_EQ(Make("aab", "two").exit_code, 0);
  const client::CliRun run =
      client::RunCliWith({"profile", "merge", At("one"), At("two"), absl::StrCat("--output=", At("both"))});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("two"), HasSubstr("model is others, this model's bundle has weights")));
  EXPECT_EQ(NumFiles(), 2);
}

TEST_F(ProfileCommandTest, WhatCannotBeReadOrWrittenIsNamed) {
  EXPECT_THAT(client::RunCliWith({"profile", "--text=a"}).err, HasSubstr("give --output=FILE"));
  std::ofstream(At("bad")) << "SYBUND01";
  const client::CliRun shown = client::RunCliWith({"profile", "show", At("bad")});
  EXPECT_EQ(shown.exit_code, 2);
  EXPECT_THAT(shown.err, AllOf(HasSubstr("bad"), HasSubstr("truncated: no checksum")));
  EXPECT_EQ(client::RunCliWith({"profile", "show", At("none")}).exit_code, 2);
  const client::CliRun nowhere =
      client::RunCliWith({"profile", server_.flag(), "--text=a", "--output=" + At("no/such")});
  EXPECT_NE(nowhere.exit_code, 0);
  EXPECT_THAT(nowhere.err, HasSubstr("no/such"));
}

TEST_F(ProfileCommandTest, ATraceIsCountedWithoutDocuments) {
  for (const char* flag : {"--text=a", "--dataset=x", "--label=prose", "--window=5"}) {
    const client::CliRun run = client::RunCliWith({"profile", "--trace=" + At("t"), flag, "--output=" + At("p")});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.err, HasSubstr("has no effect with --trace")) << flag;
  }
}

}  // namespace
}  // namespace switchyard::cli
