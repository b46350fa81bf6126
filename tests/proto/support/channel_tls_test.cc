#include "proto/support/channel_tls.h"

#include <sys/stat.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/front/certificates.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::rpc {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class ChannelTlsTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = dir_.path() + "/" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), 0600);
    return path;
  }
  static std::string Refusal(const TlsFiles& files) {
    return std::string(MakeChannelCredentials(files).status().message());
  }

  const model::TempDir dir_;
  TestAuthority authority_{dir_.path(), "one"};
};

TEST_F(ChannelTlsTest, GoodFilesAreAccepted) {
  const TestAuthority::Files own = authority_.Issue({.name = "alice"});
  EXPECT_TRUE(MakeChannelCredentials({}).ok());
  EXPECT_TRUE(MakeChannelCredentials({.on = true}).ok());
  EXPECT_TRUE(MakeChannelCredentials({.ca = authority_.file()}).ok());
  EXPECT_TRUE(MakeChannelCredentials({.ca = authority_.file(), .cert = own.cert, .key = own.key}).ok());
  EXPECT_FALSE(TlsFiles().used());
}

TEST_F(ChannelTlsTest, BadFilesAreNamed) {
  const TestAuthority::Files own = authority_.Issue({.name = "alice"}), other = authority_.Issue({.name = "bob"});
  const std::string junk = Write("junk", "hello");
  EXPECT_THAT(Refusal({.ca = "/nowhere"}), StartsWith("/nowhere: cannot be read"));
  EXPECT_EQ(Refusal({.ca = junk}), junk + ": has no certificate in PEM form");
  EXPECT_EQ(Refusal({.cert = own.cert}), own.cert + ": a certificate without its key");
  EXPECT_EQ(Refusal({.key = own.key}), own.key + ": a key without its certificate");
  EXPECT_EQ(Refusal({.cert = junk, .key = own.key}), junk + ": has no certificate in PEM form");
  EXPECT_EQ(Refusal({.cert = own.cert, .key = junk}), junk + ": has no private key in PEM form without a password");
  EXPECT_EQ(Refusal({.cert = own.cert, .key = other.key}),
            other.key + ": is not the key of the certificate in " + own.cert);
  ASSERT_EQ(chmod(own.key.c_str(), 0644), 0);
  EXPECT_THAT(Refusal({.cert = own.cert, .key = own.key}), HasSubstr("others than its owner may use it"));
}

}  // namespace
}  // namespace switchyard::rpc
