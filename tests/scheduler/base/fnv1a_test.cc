#include "scheduler/base/io/fnv1a.h"

#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(Fnv1aTest, IsThePublishedFunction) {  // test vectors of draft-eastlake-fnv
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(Fnv1a("\xff"), (0xcbf29ce484222325u ^ 0xffu) * 0x100000001b3u);  // bytes are unsigned
}

TEST(Fnv1aTest, GoesOn) { EXPECT_EQ(Fnv1a("bar", Fnv1a("foo")), Fnv1a("foobar")); }

}  // namespace
}  // namespace switchyard
