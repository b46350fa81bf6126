#include "scheduler/base/flags/help_text.h"

#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(HelpTextTest, FlagsStandUnderTheirTitlesInTheirOrder) {
  std::string model, file;
  int port = 50051, many = 0;
  bool graphs = true, slow = false;
  std::vector<std::string> labels;
  FlagSet flags;
  flags.BeginGroup("Model");
  flags.BeginGroup("Serving");
  flags.Add("port", &port, "0 = any free one");
  flags.Add("graphs", &graphs, "replay steps");
  flags.BeginGroup("Model");
  flags.Add("model=DIR", &model, "directory of a checkpoint (required)");
  flags.Add("label", &labels, "may be given again");
  flags.BeginGroup("Nobody");
  flags.BeginGroup("");
  flags.Add("slow", &slow, "is not shown");
  flags.BeginGroup("Debugging");
  flags.Add("many", &many, "so many, or as many as there are (default: all)").NoDefault().Alias("old_many");
  EXPECT_EQ(FlagsHelp(flags, 60),
            "Model:\n"
            "  --model=DIR       directory of a checkpoint (required)\n"
            "  --label=TEXT ...  may be given again\n"
            "\n"
            "Serving:\n"
            "  --port=NUMBER     0 = any free one (default 50051)\n"
            "  --graphs=BOOL     replay steps (default true)\n"
            "\n"
            "Debugging:\n"
            "  --many=NUMBER     so many, or as many as there are\n"
            "                    (default: all)\n");
}

TEST(HelpTextTest, LongNamesHaveALineOfTheirOwn) {
  EXPECT_EQ(HelpEntry("--a_long_name=NUMBER", "what it is", 10, 20),
            "  --a_long_name=NUMBER\n"
            "          what it is\n");
}

}  // namespace
}  // namespace switchyard
