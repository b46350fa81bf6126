// The list of adapters as users write it, and what of it is refused.
#include "scheduler/fleet/adapter_list.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::fleet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Refused(const std::string& text) {
  const auto places = ParseAdapterList(text);
  EXPECT_EQ(places.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(places.status().message());
}

TEST(AdapterListTest, NamesAndFolders) {
  EXPECT_THAT(ParseAdapterList("").value(), ElementsAre());
  EXPECT_THAT(ParseAdapterList("a=/x").value(), ElementsAre(AdapterPlace{"a", "/x"}));
  EXPECT_THAT(ParseAdapterList("B.1_c-d=dir/of=b,0=y").value(),
              ElementsAre(AdapterPlace{"B.1_c-d", "dir/of=b"}, AdapterPlace{"0", "y"}));
}

TEST(AdapterListTest, WhatIsWrongIsNamedWithItsLimit) {
  EXPECT_THAT(Refused("a"), HasSubstr("\"a\": is no NAME=DIR"));
  EXPECT_THAT(Refused("a=x,"), HasSubstr("\"\": is no NAME=DIR"));
  EXPECT_THAT(Refused("a="), HasSubstr("\"a=\": is no NAME=DIR"));
  EXPECT_THAT(Refused("=x"), HasSubstr("adapter name \"\": 0 bytes, must be within [1, 64]"));
  EXPECT_THAT(Refused(absl::StrCat(std::string(65, 'a'), "=x")), HasSubstr("65 bytes, must be within [1, 64]"));
  EXPECT_THAT(Refused("a:b=x"), HasSubstr("adapter name \"a:b\": must be of letters, digits, '.', '_' and '-'"));
  EXPECT_THAT(Refused("\xc3\xa4=x"), HasSubstr("must be of letters"));
  EXPECT_THAT(Refused("a=x,b=y,a=z"), HasSubstr("adapter name \"a\": is there twice"));
  std::string many;
  for (size_t i = 0; i <= kMaxAdapters; ++i) absl::StrAppend(&many, i > 0 ? "," : "", i, "=x");
  EXPECT_THAT(Refused(many), HasSubstr("257 adapters, limit 256"));
}

}  // namespace
}  // namespace switchyard::fleet
