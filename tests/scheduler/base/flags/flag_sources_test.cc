#include "scheduler/base/flags/flag_sources.h"

#include <cstdio>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class FlagSourcesTest : public testing::Test {
 protected:
  FlagSourcesTest() {
    flags_.Add("model", &model_, "");
    flags_.Add("max_num_seqs", &max_num_seqs_, "").Alias("max_seqs");
    flags_.Add("reuse", &reuse_, "");
    flags_.Add("label", &labels_, "");
    flags_.Add("timeout", &timeout_, "");
    flags_.Advise({{"", "the model is given by --model=DIR"},
                   {"-m", "the model is given by --model=DIR"},
                   {"tensor_parallel_size", "there is none"}});
  }

  std::vector<std::string> Texts(const std::vector<FlagProblem>& problems) {
    std::vector<std::string> texts;
    for (const FlagProblem& problem : problems) texts.push_back(problem.ToString());
    return texts;
  }
  std::vector<std::string> Parse(const std::vector<std::string>& args) { return Texts(flags_.Parse(args)); }
  std::vector<std::string> FillFrom(std::vector<const char*> environment) {
    environment.push_back(nullptr);
    return Texts(flags_.Fill(EnvironmentSettings(flags_, environment.data())));
  }
  // "PATH" in an error stands for the file's name.
  std::vector<std::string> FillFromFile(const std::string& yaml) {
    const std::string path = testing::TempDir() + "flag_sources_test.yaml";
    std::ofstream(path) << yaml;
    const absl::StatusOr<std::vector<FlagSetting>> settings = ReadConfigFile(path);
    std::vector<std::string> texts;
    if (settings.ok()) {
      texts = Texts(flags_.Fill(*settings));
    } else {
      EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
      texts.emplace_back(settings.status().message());
    }
    for (std::string& text : texts) {
      if (const size_t at = text.find(path); at != std::string::npos) text.replace(at, path.size(), "PATH");
    }
    std::remove(path.c_str());
    return texts;
  }

  std::string model_;
  int max_num_seqs_ = 8;
  bool reuse_ = true;
  std::vector<std::string> labels_;
  absl::Duration timeout_ = absl::Seconds(1);
  FlagSet flags_;
};

TEST_F(FlagSourcesTest, NamesMayHaveDashes) {
  EXPECT_THAT(Parse({"--max-num-seqs=3", "--no-reuse"}), IsEmpty());
  EXPECT_EQ(max_num_seqs_, 3);
  EXPECT_FALSE(reuse_);
  EXPECT_THAT(Parse({"--max-seqs", "4", "--reuse"}), IsEmpty());
  EXPECT_EQ(max_num_seqs_, 4);
  EXPECT_TRUE(reuse_);
  EXPECT_THAT(Parse({"--max-num-seq=3"}), ElementsAre("unknown flag --max-num-seq; did you mean --max_num_seqs?"));
}

TEST_F(FlagSourcesTest, OtherProgramsNamesGetAdvice) {
  EXPECT_THAT(Parse({"--tensor-parallel-size=2", "-m", "some/model"}),
              ElementsAre("unknown flag --tensor-parallel-size; there is none",
                          "unexpected argument -m; the model is given by --model=DIR",
                          "unexpected argument some/model; the model is given by --model=DIR"));
}

TEST_F(FlagSourcesTest, TheCommandLineCountsMostAndTheFileLeast) {
  EXPECT_THAT(Parse({"--model=line"}), IsEmpty());
  EXPECT_THAT(FillFrom({"SWITCHYARD_MODEL=environment", "SWITCHYARD_MAX_NUM_SEQS=2", "SWITCHYARD_LABEL=e"}), IsEmpty());
  EXPECT_THAT(FillFromFile("model: file\nmax-num-seqs: 1\nreuse: no  # not here\ntimeout: 90s\nlabel: [x, y]\n"),
              IsEmpty());
  EXPECT_EQ(model_, "line");
  EXPECT_EQ(max_num_seqs_, 2);
  EXPECT_FALSE(reuse_);
  EXPECT_EQ(timeout_, absl::Seconds(90));
  EXPECT_THAT(labels_, ElementsAre("e"));
}

TEST_F(FlagSourcesTest, AllValuesOfAFilesListCount) {
  EXPECT_THAT(FillFromFile("label:\n  - x\n  - \"y: z\"\nmodel: \"\"\n"), IsEmpty());
  EXPECT_THAT(labels_, ElementsAre("x", "y: z"));
}

TEST_F(FlagSourcesTest, VariablesOfOthersAreLeftAlone) {
  EXPECT_THAT(FillFrom({"SWITCHYARD_API_KEY=secret", "MODEL=x", "SWITCHYARD_MODEL=", "PATH"}), IsEmpty());
  EXPECT_EQ(model_, "");
  EXPECT_THAT(FillFrom({"SWITCHYARD_MAX_NUM_SEQS=tcp://10.0.0.1:80"}),
              ElementsAre("SWITCHYARD_MAX_NUM_SEQS: Illegal value 'tcp://10.0.0.1:80' specified for flag "
                          "'max_num_seqs'"));
  const char* const environment[] = {"SWITCHYARD_MODLE=x", "SWITCHYARD_API_KEY=x", "SWITCHYARD_MODEL=x", nullptr};
  EXPECT_THAT(MisspelledVariables(flags_, environment),
              ElementsAre("ignored environment variable SWITCHYARD_MODLE; did you mean SWITCHYARD_MODEL?"));
}

TEST_F(FlagSourcesTest, ErrorsOfAFileNameItsLine) {
  EXPECT_THAT(FillFromFile("model: x\n\nmax_num_seq: 3\ntensor_parallel_size: 2\ntimeout: 5\n"),
              ElementsAre("PATH:3: unknown flag --max_num_seq; did you mean --max_num_seqs?",
                          "PATH:4: unknown flag --tensor_parallel_size; there is none",
                          "PATH:5: Illegal value '5' specified for flag 'timeout'"));
  EXPECT_THAT(FillFromFile("model: x\nreuse: true\nmodel: y\n"), ElementsAre("PATH:3: model: is also on line 1"));
  EXPECT_THAT(FillFromFile("max_num_seqs: 1\nmax-num-seqs: 2\n"),
              ElementsAre("PATH:2: max_num_seqs: is also on line 1"));
  EXPECT_THAT(FillFromFile("model: x\nserving:\n  port: 1\n"),
              ElementsAre("PATH:2: serving: must be a plain value; flags have no parts"));
  EXPECT_THAT(FillFromFile("model:\n"), ElementsAre("PATH:1: model: has no value (an empty one is \"\")"));
  EXPECT_THAT(FillFromFile("- model\n"), ElementsAre("PATH:1: must be a map of flags, as in `model: DIR`"));
  EXPECT_THAT(FillFromFile("[a, b]: x\n"), ElementsAre("PATH:1: must be the name of a flag"));
  EXPECT_THAT(FillFromFile("model: x\nreuse: [a\n"), ElementsAre(HasSubstr(": is not YAML: ")));
  EXPECT_THAT(FillFromFile("# nothing yet\n"), IsEmpty());
  EXPECT_THAT(FillFromFile(""), IsEmpty());
}

TEST_F(FlagSourcesTest, AFileThatCannotBeReadIsAnError) {
  EXPECT_EQ(ReadConfigFile("/no/such/file.yaml").status().message(), "/no/such/file.yaml: cannot be read");
  EXPECT_EQ(ReadConfigFile("/").status().message(), "/: cannot be read");
}

}  // namespace
}  // namespace switchyard
