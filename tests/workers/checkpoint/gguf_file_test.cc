// GGUF files on the disk: one, and several of one model.
#include "scheduler/base/gguf/gguf_file.h"

#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/gguf_bytes.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string OneTensor(const std::string& name, const std::string& data = "0123456789abcdef") {
  return GgufBytes(
      {.keys = {GgufTextKey("general.architecture", "llama")}, .rows = {GgufRow(name, {4}, 0, 0)}, .data = data});
}

std::string SplitName(int number, int count) { return absl::StrFormat("m-%05d-of-%05d.gguf", number, count); }

// A file of a split model, with one tensor, named after its number.
struct Split {
  int no;
  int count;
  std::optional<int> tensors = std::nullopt;
  std::string tensor = "";
};
std::string SplitBytes(const Split& split) {
  std::vector<std::string> keys = {
      GgufKey("split.no", GgufValueType::kUint16, std::string{static_cast<char>(split.no), 0}),
      GgufKey("split.count", GgufValueType::kUint16, std::string{static_cast<char>(split.count), 0})};
  if (split.tensors.has_value())
    keys.push_back(GgufKey("split.tensors.count", GgufValueType::kInt32, GgufU32(*split.tensors)));
  if (split.no == 0) keys.push_back(GgufTextKey("general.architecture", "olmoe"));
  const std::string tensor = split.tensor.empty() ? absl::StrCat("t", split.no) : split.tensor;
  return GgufBytes(
      {.keys = keys, .rows = {GgufRow(tensor, {4}, 0, 0)}, .data = std::string(16, static_cast<char>('0' + split.no))});
}

std::string OpenError(const std::string& path) {
  const auto checkpoint = GgufCheckpoint::Open(path);
  return checkpoint.ok() ? "no error" : std::string(checkpoint.status().message());
}

TEST(GgufFileTest, ReadsOneFile) {
  model::TempDir dir;
  const std::string path = dir.Write("model.gguf", OneTensor("t"));
  const auto checkpoint = GgufCheckpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(*checkpoint->metadata().String("general.architecture"), "llama");
  EXPECT_EQ(checkpoint->num_tensors(), 1);
  EXPECT_EQ(checkpoint->Find("absent").file, nullptr);
  const GgufLocation place = checkpoint->Find("t");
  ASSERT_NE(place.file, nullptr);
  std::string data(static_cast<size_t>(place.tensor->bytes), ' ');
  ASSERT_TRUE(place.file->file().Read(place.tensor->begin, place.tensor->bytes, data.data()).ok());
  EXPECT_EQ(data, "0123456789abcdef");
}

TEST(GgufFileTest, NamesTheFileInErrors) {
  model::TempDir dir;
  const std::string short_file = dir.Write("short.gguf", OneTensor("t", "0123456789abcde"));
  EXPECT_THAT(OpenError(short_file), AllOf(HasSubstr("short.gguf: tensor \"t\""), HasSubstr("does not fit the file")));
  EXPECT_THAT(OpenError(dir.Write("empty.gguf", "")), HasSubstr("empty.gguf: the magic: expected 4 bytes"));
  EXPECT_THAT(OpenError(dir.Write("lfs.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")),
              HasSubstr("lfs.gguf: is a pointer of Git LFS"));
  const auto absent = GgufCheckpoint::Open(dir.File("absent.gguf"));
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(absent.status().message(), HasSubstr("absent.gguf"));
  std::filesystem::create_directory(dir.File("folder.gguf"));
  EXPECT_FALSE(GgufCheckpoint::Open(dir.File("folder.gguf")).ok());
}

// The user named the link; names in files may not lead out.
TEST(GgufFileTest, FollowsALinkThatIsNamed) {
  model::TempDir dir, elsewhere;
  std::filesystem::create_symlink(elsewhere.Write("model.gguf", OneTensor("t")), dir.File("link.gguf"));
  EXPECT_EQ(OpenError(dir.File("link.gguf")), "no error");
}

TEST(GgufFileTest, SaysThatAFileBecameShorter) {
  model::TempDir dir;
  const std::string path = dir.Write("model.gguf", OneTensor("t"));
  const auto checkpoint = GgufCheckpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const GgufLocation place = checkpoint->Find("t");
  std::filesystem::resize_file(path, place.tensor->begin + 3);
  char data[16];
  const absl::Status status = place.file->file().Read(place.tensor->begin, 16, data);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("it became shorter while it was read"));
}

TEST(GgufFileTest, ReadsSplitFilesByTheNameOfAnyOfThem) {
  model::TempDir dir;
  for (int i = 0; i < 3; ++i) dir.Write(SplitName(i + 1, 3), SplitBytes({.no = i, .count = 3, .tensors = 3}));
  for (int given = 1; given <= 3; ++given) {
    const auto checkpoint = GgufCheckpoint::Open(dir.File(SplitName(given, 3)));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ(checkpoint->files().size(), 3u);
    EXPECT_EQ(*checkpoint->metadata().String("general.architecture"), "olmoe");
    for (int i = 0; i < 3; ++i) {
      const GgufLocation place = checkpoint->Find(absl::StrCat("t", i));
      ASSERT_NE(place.file, nullptr);
      char first = ' ';
      ASSERT_TRUE(place.file->file().Read(place.tensor->begin, 1, &first).ok());
      EXPECT_EQ(first, '0' + i);
    }
  }
}

TEST(GgufFileTest, RefusesSplitFilesThatDoNotBelongTogether) {
  struct Case {
    std::vector<Split> files;
    std::string error;
  };
  const Case cases[] = {
      {{{0, 2, 2}, {0, 2}}, "m-00002-of-00002.gguf: key \"split.no\": expected 1 by the file's name, found 0"},
      {{{0, 2, 2}, {1, 3}},
       "m-00002-of-00002.gguf: key \"split.count\": expected 2 as in the model's other files, found 3"},
      {{{0, 2, 3}, {1, 2}},
       "m-00001-of-00002.gguf: key \"split.tensors.count\": expected 3 tensors in all files, found 2"},
      {{{0, 2}, {1, 2}}, "m-00001-of-00002.gguf: key \"split.tensors.count\": is missing"},
      {{{0, 2, 2}, {1, 2, 2, "t0"}}, "m-00002-of-00002.gguf: tensor \"t0\": is also in m-00001-of-00002.gguf"},
  };
  for (const Case& each : cases) {
    model::TempDir dir;
    for (size_t i = 0; i < 2; ++i) dir.Write(SplitName(static_cast<int>(i) + 1, 2), SplitBytes(each.files[i]));
    EXPECT_THAT(OpenError(dir.File(SplitName(1, 2))), HasSubstr(each.error));
  }
}

TEST(GgufFileTest, NamesMissingSplitFiles) {
  model::TempDir dir;
  dir.Write(SplitName(2, 3), SplitBytes({.no = 1, .count = 3}));
  EXPECT_THAT(OpenError(dir.File(SplitName(2, 3))),
              HasSubstr("m-00002-of-00003.gguf: of the model's 3 files 2 are missing; is the download incomplete? "
                        "Missing: m-00001-of-00003.gguf, m-00003-of-00003.gguf"));
  for (const char* name : {"m.gguf", "m-00001-of-00004.gguf", "m-1-of-3.gguf", "-00001-of-00003.gguf"}) {
    const std::string path = dir.Write(name, SplitBytes({.no = 0, .count = 3}));
    EXPECT_THAT(OpenError(path),
                HasSubstr("key \"split.count\": 3 files, so the file's name must end in -00001-of-00003"));
  }
  const std::string count = GgufKey("split.count", GgufValueType::kInt32, GgufU32(1001));
  EXPECT_THAT(OpenError(dir.Write("many.gguf", GgufBytes({.keys = {count}}))),
              HasSubstr("many.gguf: key \"split.count\": expected 1 to 1000, found 1001"));
}

}  // namespace
}  // namespace switchyard::checkpoint
