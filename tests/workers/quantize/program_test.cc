// The program: `switchyard quantize` becomes it, what it prints, its exit codes, and what it leaves behind.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::quantize {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct Ran {
  int exit_code = -1;
  std::string text;  // of both streams
};

// In a shell, where $BIN is the folder of the programs.
Ran RunShell(const std::string& line) {
  const char* const bin = std::getenv("SY_TEST_BIN_DIR");
  Ran ran;
  FILE* const pipe = popen(absl::StrCat("BIN=", bin, "; { ", line, " ; } 2>&1").c_str(), "r");
  char part[4096];
  while (const size_t count = std::fread(part, 1, sizeof(part), pipe)) ran.text.append(part, count);
  const int status = pclose(pipe);
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

std::string FileText(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

class QuantizeProgramTest : public ::testing::Test {
 protected:
  std::string Line(const std::string& flags, const std::string& program = "switchyard quantize") const {
    return absl::StrCat("$BIN/", program, " --model=deploy/demo-model --output=", output_, " ", flags);
  }

  const model::TempDir dir_;
  const std::string output_ = dir_.File("out");
};

TEST_F(QuantizeProgramTest, PrintsWhatItMade) {
  const Ran ran = RunShell(Line("--format=int4"));
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.text, AllOf(HasSubstr("/out: 416 matrices in int4, groups of 32\n"),
                              HasSubstr("tensors: 17.8 MB before, 6.7 MB after"), ContainsRegex("peak memory: [1-9]")));
  EXPECT_TRUE(std::filesystem::exists(output_ + "/model.safetensors.index.json"));
  const Ran again = RunShell(Line("--format=int4", "switchyard-quantize"));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.text, AllOf(HasSubstr("switchyard-quantize: --output="), HasSubstr("exists; name a directory")));
}

TEST_F(QuantizeProgramTest, BadInputIsCodeTwo) {
  for (const auto& [flags, text] :
       {std::pair("--format=fp5", "--format=fp5: must be int4 or int8"),
        std::pair("--format=int4 --group_size=20", "--group_size=20: must be a multiple of 8"),
        std::pair("--format=int4 --group_size=64", "groups of 64 columns do not divide its 96 columns"),
        std::pair("--format=int4 --model=nowhere", "no such directory")}) {
    const Ran ran = RunShell(Line(flags, "switchyard-quantize"));
    EXPECT_EQ(ran.exit_code, 2) << flags;
    EXPECT_THAT(ran.text, HasSubstr(text));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(QuantizeProgramTest, PrintsBitsPerByteOfWhatWasHeldOut) {
  const Ran ran =
      RunShell(Line("--format=int8 --dataset=tests/golden/quantized/written/text.bin --samples=8 --sequence=64"));
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.text,
              AllOf(HasSubstr("calibrated by GPTQ on 8 windows; experts rounded to nearest for want of rows: "),
                    ContainsRegex("bits per byte of [0-9]+ held-out tokens: 0\\.[0-9]+ before, 0\\.[0-9]+ after")));
}

// In the midst of a layer, which its first line of progress shows.
TEST_F(QuantizeProgramTest, AnInterruptedRunLeavesNothing) {
  const std::string program = absl::StrCat(std::getenv("SY_TEST_BIN_DIR"), "/switchyard-quantize");
  const std::string output = absl::StrCat("--output=", output_);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    execl(program.c_str(), program.c_str(), "--model=deploy/demo-model", output.c_str(), "--format=int4", "--threads=1",
          "--dataset=tests/golden/quantized/written/text.bin", "--sequence=1024", nullptr);
    _exit(127);
  }
  close(ends[1]);
  FILE* const lines = fdopen(ends[0], "r");
  char line[4096] = "";
  ASSERT_NE(std::fgets(line, sizeof(line), lines), nullptr);
  EXPECT_THAT(line, HasSubstr("quantize: layer "));
  // It reads folders of others.
  EXPECT_THAT(FileText(absl::StrCat("/proc/", child, "/status")), HasSubstr("NoNewPrivs:\t1"));
  EXPECT_THAT(FileText(absl::StrCat("/proc/", child, "/limits")), ContainsRegex("Max core file size +0 +0 "));
  EXPECT_EQ(kill(child, SIGINT), 0);
  std::string rest;
  while (std::fgets(line, sizeof(line), lines) != nullptr) rest += line;
  std::fclose(lines);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT) << status;
  EXPECT_THAT(rest, HasSubstr("interrupted; nothing was written"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

// As of a full disk: the last file does not fit.
TEST_F(QuantizeProgramTest, NothingStaysWhereAFileCannotBeWritten) {
  const Ran ran = RunShell(absl::StrCat("ulimit -f 2000; ", Line("--format=int4")));
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.text, HasSubstr("File too large"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace switchyard::quantize
