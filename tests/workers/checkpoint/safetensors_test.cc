// Files and directories: the errors of those that are refused, and the bytes of the others.
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string LittleEndian(uint64_t value) {
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

std::string OneTensor(const std::string& name, float value = 1) {
  return SafetensorsBytes({{name, FloatTensor("F32", {2}, {value, 2})}});
}

std::string Index(const std::string& weight_map, const std::string& metadata = "{}") {
  return absl::StrCat(R"({"metadata":)", metadata, R"(,"weight_map":)", weight_map, "}");
}

std::string OpenError(const model::TempDir& dir) {
  const auto checkpoint = Checkpoint::Open(dir.path());
  return checkpoint.ok() ? "no error" : std::string(checkpoint.status().message());
}

TEST(SafetensorsTest, HeaderLengths) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "header length needs 8 bytes, which exceeds file size 0"},
      {"1234567", "header length needs 8 bytes, which exceeds file size 7"},
      {LittleEndian(0), "header length 0"},
      {LittleEndian(1), "header length 1 exceeds file size 8"},
      {LittleEndian(3) + "{}", "header length 3 exceeds file size 10"},
      {LittleEndian(UINT64_MAX) + "{}", "header length 18446744073709551615 exceeds file size 10"},
      {LittleEndian(UINT64_MAX - 7) + "{}", "header length 18446744073709551608 exceeds file size 10"},
      {LittleEndian(int64_t{1} << 63) + "{}", "exceeds file size 10"},
      {std::string("GGUF\3\0\0\0 and more", 17), "unsupported format; only safetensors"},
      {std::string("PK\x03\x04 a zip of pickles"), "unsupported format; only safetensors"},
      {std::string("\x80\x02}q\x01 pickle"), "unsupported format; only safetensors"},
  };
  for (const auto& [bytes, message] : cases) {
    model::TempDir dir;
    dir.Write("model.safetensors", bytes);
    EXPECT_THAT(OpenError(dir), AllOf(HasSubstr("shard model.safetensors: "), HasSubstr(message)));
  }
}

// A length of 640 is the bytes 80 02, with which a pickle of protocol 2 begins; 1152 those of protocol 4.
TEST(SafetensorsTest, LengthsThatBeginAsPicklesDoAreLengths) {
  for (const size_t length : {640, 1152, 640 + 65536}) {
    model::TempDir dir;
    std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    header.resize(length, ' ');
    dir.Write("model.safetensors", SafetensorsBytes(header, "1234"));
    EXPECT_EQ(OpenError(dir), "no error") << length;
  }
}

TEST(SafetensorsTest, OverlongHeaderIsRefusedBeforeItIsRead) {
  model::TempDir dir;
  dir.Write("model.safetensors", LittleEndian(25'000'001) + "{}");
  std::filesystem::resize_file(dir.File("model.safetensors"), 30'000'000);
  EXPECT_THAT(OpenError(dir), HasSubstr("header length 25000001 exceeds limit 25000000"));
}

TEST(SafetensorsTest, ReadsBackWhatWasWritten) {
  model::TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes({{"a", FloatTensor("F32", {2, 2}, {1, 2, 3, 4})},
                                                   {"b", FloatTensor("BF16", {3}, {5, 6, 7})}}));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->TensorNames(), ElementsAre("a", "b"));
  const TensorLocation a = checkpoint->Find("a");
  EXPECT_THAT(a.entry->shape, ElementsAre(2, 2));
  float values[4];
  ASSERT_TRUE(a.file->Read(a.entry->begin, a.entry->bytes, values).ok());
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(checkpoint->Find("c").file, nullptr);
  EXPECT_EQ(*ParseSafetensorsDType(checkpoint->Find("b").entry->dtype), DType::kBf16);
  EXPECT_EQ(ParseSafetensorsDType("F8_E4M3").status().code(), absl::StatusCode::kUnimplemented);
}

TEST(SafetensorsTest, FileThatShrinksGivesAnErrorAndNoSignal) {
  model::TempDir dir;
  dir.Write("model.safetensors", OneTensor("a"));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  std::filesystem::resize_file(dir.File("model.safetensors"), 100);
  const TensorLocation a = checkpoint->Find("a");
  float values[2];
  const absl::Status status = a.file->Read(a.entry->begin, 8, values);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("became shorter"));
}

TEST(SafetensorsTest, Shards) {
  model::TempDir dir;
  dir.Write("model-a.safetensors", OneTensor("a"));
  dir.Write("model-b.safetensors", OneTensor("b"));
  dir.Write("unrelated.safetensors", "rubbish that no index names");
  dir.Write("model.safetensors.index.json",
            Index(R"({"a":"model-a.safetensors","b":"model-b.safetensors"})", R"({"total_size":16})"));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->files().size(), 2u);
  EXPECT_EQ(checkpoint->Find("b").file->name(), "model-b.safetensors");
}

TEST(SafetensorsTest, BadIndexes) {
  const std::pair<std::string, std::string> cases[] = {
      {"[]", "weight_map is missing or no object"},
      {"{}", "weight_map is missing or no object"},
      {"{\"weight_map\":", "model.safetensors.index.json: syntax error at byte 15"},
      {Index("[]"), "weight_map is missing or no object"},
      {Index("{}"), "weight_map is empty"},
      {Index(R"({"a":1})"), "weight_map[\"a\"] is no string"},
      {Index(R"({"a":"s.safetensors","a":"s.safetensors"})"), "duplicate key \"a\""},
      {Index(R"({"a":"../x.safetensors"})"), "shard ../x.safetensors: \"..\" is not a plain file name"},
      {Index(R"({"a":"sub/../../x.safetensors"})"), "\"..\" is not a plain file name"},
      {Index(R"({"a":"./s.safetensors"})"), "\".\" is not a plain file name"},
      {Index(R"({"a":"/etc/passwd"})"), "shard /etc/passwd: \"\" is not a plain file name"},
      {Index(R"({"a":"sub//s.safetensors"})"), "\"\" is not a plain file name"},
      {Index(R"({"a":"sub/gone.safetensors"})"), "of the 1 files that it names 1 is missing"},
      {Index(R"({"a":".."})"), "is not a plain file name"},
      {Index(R"({"a":""})"), "is not a plain file name"},
      {Index(R"({"a":"s.safetensors\u0000"})"), "is not a plain file name"},
      {Index(R"({"a":"pytorch_model.bin"})"), "shard pytorch_model.bin: unsupported format; only safetensors"},
      {Index(R"({"a":"gone.safetensors"})"), "of the 1 files that it names 1 is missing; is the download incomplete?"},
      {Index(R"({"a":"s.safetensors","b":"t.safetensors"})"),
       "shard t.safetensors: tensor \"a\": the index puts it into s.safetensors"},
      {Index(R"({"b":"u.safetensors"})"), "shard u.safetensors: tensor \"c\": the index does not name it"},
  };
  for (const auto& [index, message] : cases) {
    model::TempDir dir;
    dir.Write("s.safetensors", OneTensor("a"));
    dir.Write("t.safetensors",
              SafetensorsBytes({{"a", FloatTensor("F32", {1}, {1})}, {"b", FloatTensor("F32", {1}, {1})}}));
    dir.Write("u.safetensors",
              SafetensorsBytes({{"b", FloatTensor("F32", {1}, {1})}, {"c", FloatTensor("F32", {1}, {1})}}));
    dir.Write("model.safetensors.index.json", index);
    EXPECT_THAT(OpenError(dir), HasSubstr(message)) << index;
  }
}

// Writers differ in what they count: tensors, whole files, or what an earlier version of the model had.
TEST(SafetensorsTest, AnotherTotalSizeIsAWarning) {
  const auto open = [](const std::string& metadata) {
    model::TempDir dir;
    dir.Write("s.safetensors", OneTensor("a"));
    dir.Write("model.safetensors.index.json", Index(R"({"a":"s.safetensors"})", metadata));
    testing::internal::CaptureStderr();
    const std::string error = OpenError(dir);
    return absl::StrCat(error, "\n", testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(open(R"({"total_size":8})"), "no error\n");
  EXPECT_EQ(open(R"({"total_size":8.0})"), "no error\n");
  EXPECT_THAT(open(R"({"total_size":80})"),
              AllOf(HasSubstr("no error"), HasSubstr("total_size is 80, the shards' tensors have 8 bytes")));
  EXPECT_THAT(open(R"({"total_size":"8"})"), AllOf(HasSubstr("no error"), HasSubstr("total_size is \"8\"")));
}

// As published indexes do of layers that were left out (mtp.fc.weight).
TEST(SafetensorsTest, AnIndexMayNameATensorThatNoShardHas) {
  model::TempDir dir;
  dir.Write("s.safetensors", OneTensor("a"));
  dir.Write("model.safetensors.index.json", Index(R"({"a":"s.safetensors","b":"s.safetensors"})"));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->TensorNames(), ElementsAre("a"));
  EXPECT_EQ(checkpoint->Find("b").file, nullptr);
}

TEST(SafetensorsTest, ShardsMayBeInFoldersBeneathTheModel) {
  model::TempDir dir, outside;
  outside.Write("s.safetensors", OneTensor("b"));
  std::filesystem::create_directories(dir.File("layers/0"));
  dir.Write("layers/0/s.safetensors", OneTensor("a"));
  dir.Write("s.safetensors", OneTensor("b"));
  const std::string index = Index(R"({"a":"layers/0/s.safetensors","b":"s.safetensors"})");
  dir.Write("model.safetensors.index.json", index);
  {
    const auto checkpoint = Checkpoint::Open(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const TensorLocation a = checkpoint->Find("a");
    ASSERT_NE(a.file, nullptr);
    EXPECT_EQ(a.file->name(), "layers/0/s.safetensors");
    float values[2];
    ASSERT_TRUE(a.file->Read(a.entry->begin, 8, values).ok());
    EXPECT_THAT(values, ElementsAre(1, 2));
  }
  // A link of a file stays beneath the model, as everywhere; a folder is none.
  std::filesystem::remove(dir.File("layers/0/s.safetensors"));
  std::filesystem::create_symlink(outside.File("s.safetensors"), dir.File("layers/0/s.safetensors"));
  EXPECT_THAT(OpenError(dir), HasSubstr("its link leads out of the model directory"));
  std::filesystem::remove_all(dir.File("layers"));
  std::filesystem::create_directory(dir.File("other"));
  dir.Write("other/s.safetensors", OneTensor("a"));
  std::filesystem::create_symlink("other", dir.File("layers"));
  dir.Write("model.safetensors.index.json", Index(R"({"a":"layers/s.safetensors","b":"s.safetensors"})"));
  EXPECT_THAT(OpenError(dir), HasSubstr("layers: no such folder in the model directory"));
}

TEST(SafetensorsTest, OtherFormatsAndNoModel) {
  for (const char* name : {"pytorch_model.bin", "consolidated.00.pth", "model.pt", "model.Q4_K_M.gguf"}) {
    model::TempDir dir;
    dir.Write(name, "anything");
    EXPECT_THAT(OpenError(dir), AllOf(HasSubstr(name), HasSubstr("unsupported format; only safetensors")));
    const auto file = Checkpoint::Open(dir.File(name));
    const bool gguf = absl::EndsWith(name, ".gguf");
    EXPECT_THAT(std::string(file.status().message()),
                HasSubstr(gguf ? "expected the magic \"GGUF\"" : "unsupported format; only safetensors"));
  }
  model::TempDir dir;
  EXPECT_THAT(OpenError(dir), HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
  EXPECT_EQ(Checkpoint::Open(dir.File("gone")).status().code(), absl::StatusCode::kNotFound);
  dir.Write("model.safetensors", OneTensor("a"));
  EXPECT_THAT(std::string(Checkpoint::Open(dir.File("model.safetensors")).status().message()),
              HasSubstr("is a file; give the directory"));
}

TEST(SafetensorsTest, NothingButRegularFilesInsideTheDirectory) {
  model::TempDir outside;
  outside.Write("secret.safetensors", OneTensor("a"));
  {
    model::TempDir dir;
    std::filesystem::create_symlink(outside.File("secret.safetensors"), dir.File("model.safetensors"));
    EXPECT_THAT(OpenError(dir), HasSubstr("its link leads out of the model directory"));
  }
  {
    model::TempDir dir;
    ASSERT_EQ(mkfifo(dir.File("model.safetensors").c_str(), 0600), 0);
    EXPECT_THAT(OpenError(dir), HasSubstr("not a regular file"));  // and it did not wait for a writer
  }
  {
    model::TempDir dir;
    std::filesystem::create_directory(dir.File("model.safetensors"));
    EXPECT_THAT(OpenError(dir), HasSubstr("not a regular file"));
  }
}

// The Hugging Face cache: models--x/snapshots/<revision>/model.safetensors -> ../../blobs/<hash>.
TEST(SafetensorsTest, LinksOfACacheSnapshotAreFollowed) {
  model::TempDir dir;
  std::filesystem::create_directories(dir.File("blobs"));
  std::filesystem::create_directories(dir.File("snapshots/abc"));
  dir.Write("blobs/0123", OneTensor("a"));
  std::filesystem::create_symlink("../../blobs/0123", dir.File("snapshots/abc/model.safetensors"));
  const auto checkpoint = Checkpoint::Open(dir.File("snapshots/abc"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->files().size(), 1u);
}

TEST(SafetensorsTest, HashFollowsNamesSizesAndHeaders) {
  model::TempDir a, same, other_data, other_name, other_size;
  a.Write("model.safetensors", OneTensor("a"));
  same.Write("model.safetensors", OneTensor("a"));
  other_data.Write("model.safetensors", OneTensor("a", 5));
  other_name.Write("model.safetensors", OneTensor("b"));
  other_size.Write("model.safetensors", SafetensorsBytes({{"a", FloatTensor("F32", {3}, {1, 2, 3})}}));
  const auto hash_of = [](const model::TempDir& dir) { return Checkpoint::Open(dir.path())->Hash(); };
  const std::string hash = hash_of(a);
  EXPECT_EQ(hash.size(), 32u);
  EXPECT_EQ(hash, hash_of(same));
  EXPECT_EQ(hash, hash_of(other_data));  // weights themselves are not read
  EXPECT_NE(hash, hash_of(other_name));
  EXPECT_NE(hash, hash_of(other_size));
}

}  // namespace
}  // namespace switchyard::checkpoint
