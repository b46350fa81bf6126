#include "workers/checkpoint/manifest/manifest.h"

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::checkpoint {
namespace {

using testing::HasSubstr;

std::vector<FileRecord> Records() {
  return {{"a.json", {5, Sha256Hex("hello"), {0x9a71bb4cu}}},
          {"b", {0, Sha256Hex(""), {}}},
          {"c", {kSummedBlockBytes + 1, Sha256Hex("c"), {0, 0xffffffffu}}}};
}

TEST(ManifestTest, Sha256IsTheStandards) {
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ManifestTest, WhatIsEncodedIsDecoded) {
  const Manifest manifest = {1000, 7, {4, 8, "amx \"\\", "0.1", "bf16"}, Records()};
  const std::string text = EncodeManifest(manifest);
  const absl::StatusOr<Manifest> read = DecodeManifest(text);
  ASSERT_EQ(read.status(), absl::OkStatus());
  EXPECT_EQ(EncodeManifest(*read), text);
  EXPECT_EQ(read->files, manifest.files);
  EXPECT_EQ(read->saved_by.isa, manifest.saved_by.isa);
  EXPECT_EQ(read->attempt, 7);
  for (size_t size = 0; size < text.size(); ++size) {
    ASSERT_EQ(DecodeManifest(text.substr(0, size)).status().code(), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_EQ(DecodeManifest(text + "\n").status().code(), absl::StatusCode::kDataLoss);
}

TEST(ManifestTest, FilesThatAreNotInOrder) {
  std::vector<FileRecord> records = Records();
  records.push_back(records.front());
  EXPECT_THAT(std::string(DecodeManifest(EncodeManifest({1, 1, {}, records})).status().message()),
              HasSubstr("file a.json: not in order"));
}

TEST(ManifestTest, RecordsThatSayWhatTheyMayNot) {
  const std::string good = EncodeFileRecords(Records());
  ASSERT_EQ(*DecodeFileRecords(good), Records());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"a.json", "../a"},
                                                                                 {"\"bytes\":5", "\"bytes\":-5"},
                                                                                 {"\"bytes\":5", "\"bytes\":1048577"},
                                                                                 {"9a71bb4c", "9a71bb4"},
                                                                                 {"9a71bb4c", "9A71BB4C"},
                                                                                 {"\"sha256\":\"", "\"sha256\":\"0"},
                                                                                 {"crc32c", "crc"},
                                                                                 {"\"b\"", "5"}}) {
    const std::string bad = absl::StrReplaceAll(good, {{from, to}});
    ASSERT_NE(bad, good);
    EXPECT_EQ(DecodeFileRecords(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(DecodeFileRecords("{}").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ManifestTest, StepFolders) {
  EXPECT_EQ(StepFolder(1000), "step-00001000");
  EXPECT_EQ(StepOfFolder("step-00001000"), 1000);
  EXPECT_EQ(StepOfFolder(StepFolder(123456789012)), 123456789012);
  for (const char* name : {"step-1000", "step-00001000.tmp-1", "step-0000100x", "step--0000001", "step-+0001000",
                           "step-", "LATEST", "step-000001000"}) {
    EXPECT_EQ(StepOfFolder(name), -1) << name;
  }
}

TEST(ManifestTest, LatestIsWholeOrNothing) {
  const std::string text = EncodeLatest({"step-00001000", Sha256Hex("x")});
  EXPECT_EQ(DecodeLatest(text)->folder, "step-00001000");
  EXPECT_EQ(DecodeLatest(text)->manifest_sha256, Sha256Hex("x"));
  for (const std::string& bad : {std::string(), text.substr(1), text + "x", EncodeLatest({"../x", Sha256Hex("x")})}) {
    EXPECT_EQ(DecodeLatest(bad).status().code(), absl::StatusCode::kDataLoss) << bad;
  }
}

}  // namespace
}  // namespace switchyard::checkpoint
