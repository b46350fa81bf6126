// Every attempt is refused as documented, and the servers answer afterwards as before.  Prints each with its answer,
// and their number at the end.
#include "tests/security/attempts.h"

#include <signal.h>

#include <iostream>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

class Attacked : public testing::Environment {
 public:
  void TearDown() override { servers.Stop(); }
  AttackedServers servers;
};
Attacked* const kAttacked = static_cast<Attacked*>(testing::AddGlobalTestEnvironment(new Attacked));  // NOLINT

class AttemptTest : public testing::TestWithParam<Attempt> {
 protected:
  void Run() {
    AttackedServers& servers = kAttacked->servers;
    ASSERT_NE(servers.open(), nullptr);
    const std::string answer = GetParam().run(servers);
    std::cout << "  " << GetParam().name << ": " << answer.substr(0, 160) << "\n";
    EXPECT_THAT(answer, testing::ContainsRegex(GetParam().refusal));
    EXPECT_EQ(servers.Difference(), "");
  }
};

TEST_P(AttemptTest, IsRefused) { Run(); }

class ToleratedTest : public AttemptTest {};

TEST_P(ToleratedTest, IsServedAsIfItWereNotThere) { Run(); }

std::string NameOf(const testing::TestParamInfo<Attempt>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Keys, AttemptTest, testing::ValuesIn(KeyAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(Roles, AttemptTest, testing::ValuesIn(RoleAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(Jobs, AttemptTest, testing::ValuesIn(JobAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(Joins, AttemptTest, testing::ValuesIn(JoinAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(Http, AttemptTest, testing::ValuesIn(HttpAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(HttpApi, AttemptTest, testing::ValuesIn(HttpApiAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(Frames, AttemptTest, testing::ValuesIn(FrameAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(Messages, AttemptTest, testing::ValuesIn(MessageAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(Starts, AttemptTest, testing::ValuesIn(StartAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(Tls, AttemptTest, testing::ValuesIn(TlsAttempts()), NameOf);
INSTANTIATE_TEST_SUITE_P(Headers, ToleratedTest, testing::ValuesIn(ToleratedHeaders()), NameOf);
INSTANTIATE_TEST_SUITE_P(Messages, ToleratedTest, testing::ValuesIn(ToleratedMessages()), NameOf);

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to connections that servers have ended
  const int failed = RUN_ALL_TESTS();
  int attempts = 0, refused = 0, tolerated = 0;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    attempts += suite.test_to_run_count();
    const bool tolerates = absl::StrContains(suite.name(), "Tolerated");
    (tolerates ? tolerated : refused) += suite.successful_test_count();
  }
  std::cout << "\n" << attempts << " attempts, " << refused << " refused as documented, " << tolerated << " harmless\n";
  return failed;
}
