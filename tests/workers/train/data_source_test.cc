#include "workers/train/data/data_source.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"
#include "tests/workers/train/token_contents.h"

namespace switchyard::train {
namespace {

constexpr int64_t kVocab = 1000;

using Contents = TokenContents;

std::string FileOf(const Contents& contents) { return FileOf(contents, kVocab); }

std::vector<int32_t> Counting(int32_t begin, int32_t count) {
  std::vector<int32_t> tokens = {};
  for (int32_t i = 0; i < count; ++i) tokens.push_back((begin + i) % kVocab);
  return tokens;
}

class DataSourceTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_.path() + "/" + name, std::ios::binary) << bytes;
  }
  absl::StatusOr<TokenFile> Open(const std::string& name) {
    const absl::StatusOr<RootDir> dir = RootDir::Open(dir_.path(), "the folder");
    if (!dir.ok()) return dir.status();
    return TokenFile::Open(*dir, name);
  }
  absl::Status Verify(const std::string& name) {
    const absl::StatusOr<TokenFile> file = Open(name);
    if (!file.ok()) return file.status();
    return file->Verify(kVocab, [](int64_t, int64_t) { return true; });
  }
  absl::StatusOr<std::unique_ptr<DataSource>> Source(const std::vector<std::string>& names, DataOptions options) {
    std::vector<TokenFile> files;
    for (const std::string& name : names) {
      absl::StatusOr<TokenFile> file = Open(name);
      if (!file.ok()) return file.status();
      files.push_back(*std::move(file));
    }
    options.vocab = kVocab;
    return DataSource::Create(std::move(files), options);
  }

  const model::TempDir dir_;
};

TEST_F(DataSourceTest, WindowsInOrder) {
  Write("a.bin", FileOf({.tokens = Counting(0, 11)}));
  Write("b.bin", FileOf({.token_bytes = 4, .tokens = Counting(500, 10)}));
  const auto source = Source({"a.bin", "b.bin"}, {.length = 5, .in_order = true});
  ASSERT_TRUE(source.ok()) << source.status();
  // Of b the second window lacks its last target.
  ASSERT_EQ((*source)->num_windows(), 3);
  const absl::StatusOr<TrainRows> rows = (*source)->Samples(0, 4);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->length, 5);
  EXPECT_EQ(rows->tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 500, 501, 502, 503, 504, 0, 1, 2, 3, 4}));
  EXPECT_EQ(rows->targets,
            (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 501, 502, 503, 504, 505, 1, 2, 3, 4, 5}));
}

TEST_F(DataSourceTest, MaskedTokensAreNoTargets) {
  std::vector<bool> trained(23, true);
  for (const int i : {0, 3, 4, 9, 22}) trained[i] = false;
  Write("a.bin", FileOf({.tokens = Counting(0, 23), .trained = trained}));
  const auto source = Source({"a.bin"}, {.length = 11, .in_order = true});
  ASSERT_TRUE(source.ok()) << source.status();
  const absl::StatusOr<TrainRows> rows = (*source)->Samples(0, 2);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->targets, (std::vector<int32_t>{1,  2,  -1, -1, 5,  6,  7,  8,  -1, 10, 11,  //
                                                 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, -1}));
}

TEST_F(DataSourceTest, AnEpochHasEveryWindowOnceAndPartsAreTheWhole) {
  Write("a.bin", FileOf({.tokens = Counting(0, 161)}));
  const auto source = Source({"a.bin"}, {.length = 5, .seed = 9});
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_EQ((*source)->num_windows(), 32);
  const TrainRows epoch = *(*source)->Samples(32, 32);
  std::vector<int32_t> begins;
  for (size_t i = 0; i < epoch.tokens.size(); i += 5) begins.push_back(epoch.tokens[i]);
  EXPECT_FALSE(std::is_sorted(begins.begin(), begins.end()));
  std::sort(begins.begin(), begins.end());
  for (size_t i = 0; i < begins.size(); ++i) EXPECT_EQ(begins[i], static_cast<int32_t>(5 * i));
  const TrainRows part = *(*source)->Samples(40, 4);
  EXPECT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(), epoch.tokens.begin() + 40));
}

TEST_F(DataSourceTest, TooFewTokens) {
  Write("a.bin", FileOf({.tokens = Counting(0, 5)}));
  EXPECT_EQ(Source({"a.bin"}, {.length = 5}).status().message(),
            "data: 1 files of 5 tokens hold no window of 5 and its last target");
}

TEST_F(DataSourceTest, VerifyFindsEveryFlippedBit) {
  std::vector<bool> trained(21, true);
  trained[7] = false;
  const std::string good = FileOf({.tokens = Counting(3, 21), .trained = trained, .documents = {0, 10}});
  Write("good.bin", good);
  EXPECT_TRUE(Verify("good.bin").ok()) << Verify("good.bin");
  Write("bad.bin", good);
  std::fstream bad(dir_.path() + "/bad.bin", std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](size_t at, char byte) { bad.seekp(static_cast<std::streamoff>(at)).put(byte).flush(); };
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    put(bit / 8, static_cast<char>(good[bit / 8] ^ (1 << (bit % 8))));
    EXPECT_FALSE(Verify("bad.bin").ok()) << "bit " << bit;
    put(bit / 8, good[bit / 8]);
  }
  EXPECT_TRUE(Verify("bad.bin").ok());
}

TEST_F(DataSourceTest, VerifyNamesWhatIsWrong) {
  Write("a.bin", FileOf({.tokens = {1, 2, 1000, 3}}));
  EXPECT_EQ(Verify("a.bin").message(), "a.bin: token 2 is 1000, outside [0, 1000)");
  Write("b.bin", FileOf({.tokens = Counting(0, 9), .documents = {0, 4, 4}}));
  EXPECT_EQ(Verify("b.bin").message(), "b.bin: document 2 begins at token 4 of 9, the one before at 4");
  Write("c.bin", FileOf({.tokens = Counting(0, 9), .documents = {1}}));
  EXPECT_EQ(Verify("c.bin").message(), "c.bin: document 0 begins at token 1 of 9, the one before at -1");
  const absl::StatusOr<TokenFile> file = Open("b.bin");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->Verify(999, [](int64_t, int64_t) { return true; }).message(),
            "b.bin: is made with a vocabulary of 1000 tokens, the model has 999");
  EXPECT_EQ(file->Verify(kVocab, [](int64_t, int64_t) { return false; }).code(), absl::StatusCode::kCancelled);
}

TEST_F(DataSourceTest, NoFileOfAnotherKind) {
  Write("empty.bin", "");
  EXPECT_FALSE(Open("empty.bin").ok());
  Write("text.bin", std::string(2000, 'a'));
  EXPECT_EQ(Open("text.bin").status().message(),
            "text.bin: token file: begins neither as one of ours (SYTOKENS) nor as one of llm.c");
  EXPECT_EQ(Open("none.bin").status().code(), absl::StatusCode::kNotFound);
  std::filesystem::create_symlink("/etc/passwd", dir_.path() + "/link.bin");
  EXPECT_EQ(Open("link.bin").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Open("../x.bin").ok());
}

TEST_F(DataSourceTest, AFileThatChanges) {
  const std::string bytes = FileOf({.tokens = Counting(0, 101)});
  for (const bool deleted : {false, true}) {
    Write("a.bin", bytes);
    const auto source = Source({"a.bin"}, {.length = 5});
    ASSERT_TRUE(source.ok()) << source.status();
    ASSERT_TRUE((*source)->Samples(0, 1).ok());
    if (deleted) {
      std::filesystem::remove(dir_.path() + "/a.bin");
    } else {
      std::filesystem::resize_file(dir_.path() + "/a.bin", bytes.size() - 8);
    }
    const absl::Status status = (*source)->Samples(1, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(status.message().substr(0, 34), "a.bin: changed while it was read: ");
  }
}

TEST_F(DataSourceTest, WindowsHaveTheBordersOfDocumentsAndNoTargetBeyond) {
  // Windows of 5 of [0, 5), [5, 10), [10, 15) and their last targets; a border in the middle, at a window's begin and
  // last.
  Write("a.bin", FileOf({.tokens = Counting(0, 16), .documents = {0, 2, 5, 9, 14, 15}}));
  const auto rows = [&](bool mask) {
    const auto source = Source({"a.bin"}, {.length = 5, .in_order = true, .document_mask = mask});
    EXPECT_TRUE(source.ok()) << source.status();
    return *(*source)->Samples(0, 3);
  };
  const TrainRows masked = rows(true);
  EXPECT_EQ(masked.tokens, Counting(0, 15));
  EXPECT_EQ(masked.targets, (std::vector<int32_t>{1, -1, 3, 4, -1, 6, 7, 8, -1, 10, 11, 12, 13, -1, -1}));
  EXPECT_EQ(masked.borders, (std::vector<int32_t>{2, 9, 14}));
  const TrainRows joined = rows(false);
  EXPECT_EQ(joined.targets, Counting(1, 15));
  EXPECT_TRUE(joined.borders.empty());
}

TEST_F(DataSourceTest, BordersOfManyDocumentsAreFoundAtTheirWindows) {
  constexpr int32_t kTokens = 5001;
  Contents contents = {.tokens = Counting(0, kTokens)};
  for (int64_t at = 1; at < kTokens; at += 1 + at * at % 11) contents.documents.push_back(at);
  Write("a.bin", FileOf(contents));
  const auto source = Source({"a.bin"}, {.length = 10, .in_order = true, .document_mask = true});
  ASSERT_TRUE(source.ok()) << source.status();
  for (const int64_t window : {0, 1, 77, 250, 498, 499}) {
    std::vector<int32_t> wanted;
    for (const int64_t begin : contents.documents) {
      if (begin > 10 * window && begin < 10 * window + 10) wanted.push_back(static_cast<int32_t>(begin - 10 * window));
    }
    EXPECT_EQ((*source)->Samples(window, 1)->borders, wanted) << window;
  }
}

// Its files say with a token where documents begin.
TEST_F(DataSourceTest, DocumentsOfLlmcsFilesBeginWithATokenOfTheirTokenizer) {
  const std::string bytes = LlmcFileOf({50256, 3, 4, 50256, 5, 6, 7, 50256, 8});
  Write("a.bin", bytes);
  const absl::StatusOr<TokenFile> file = Open("a.bin");
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<int32_t> tokens(9);
  std::vector<uint8_t> trained(9);
  ASSERT_TRUE(file->Read(0, absl::MakeSpan(tokens), absl::MakeSpan(trained)).ok());
  std::vector<int64_t> begins;
  ASSERT_TRUE(file->AppendBegins(2, absl::MakeConstSpan(tokens).subspan(2), &begins).ok());
  EXPECT_EQ(begins, (std::vector<int64_t>{3, 7}));
}

TEST_F(DataSourceTest, BeginsThatDoNotRiseAreNamed) {
  Write("a.bin", FileOf({.tokens = Counting(0, 11), .documents = {0, 4, 3}}));
  const auto source = Source({"a.bin"}, {.length = 10, .in_order = true, .document_mask = true});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Samples(0, 1).status().message(), "a.bin: document 2 begins at token 3, expected more than 4");
  Write("b.bin", FileOf({.tokens = Counting(0, 11), .documents = {0, 1, 1}}));
  const auto other = Source({"b.bin"}, {.length = 10, .document_mask = true});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(std::string((*other)->HasTarget([](int64_t, int64_t) { return true; }).status().message()),
              testing::HasSubstr("document 2 begins at token 1 of 11, the one before at 1"));
}

TEST_F(DataSourceTest, TheFirstTokenOfADocumentIsNoTarget) {
  const auto has_target = [&](std::vector<bool> trained, const std::vector<int64_t>& documents, bool mask) {
    Write("a.bin", FileOf({.tokens = Counting(0, 11), .trained = std::move(trained), .documents = documents}));
    return *(*Source({"a.bin"}, {.length = 10, .document_mask = mask}))->HasTarget([](int64_t, int64_t) {
      return true;
    });
  };
  const std::vector<int64_t> each = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_TRUE(has_target({}, each, false));
  EXPECT_FALSE(has_target({}, each, true));
  EXPECT_TRUE(has_target({}, {0, 1, 2, 3, 4, 5, 6, 7, 9, 10}, true));
  std::vector<bool> one(11, false);
  one[7] = true;
  EXPECT_TRUE(has_target(one, {0, 7}, false));
  EXPECT_FALSE(has_target(one, {0, 7}, true));
  EXPECT_TRUE(has_target(one, {0, 6, 8}, true));
}

// Of tokens 0 to 10 in windows of 4: 1 to 8 are targets of one.
TEST_F(DataSourceTest, ATargetIsOneOfAWindow) {
  const auto has_target = [&](std::vector<bool> trained, int64_t length) {
    Write("a.bin", FileOf({.tokens = Counting(0, 11), .trained = std::move(trained)}));
    return *(*Source({"a.bin"}, {.length = length, .vocab = kVocab}))->HasTarget([](int64_t, int64_t) { return true; });
  };
  EXPECT_TRUE(has_target({}, 4)) << "without a mask all are";
  for (size_t i = 0; i < 11; ++i) {
    std::vector<bool> one(11, false);
    one[i] = true;
    EXPECT_EQ(has_target(one, 4), i >= 1 && i <= 8) << i;
    EXPECT_EQ(has_target(one, 10), i >= 1) << i;
    EXPECT_EQ(has_target(one, 7), i >= 1 && i <= 7) << i;
  }
}

TEST_F(DataSourceTest, ATargetOfAnyFileAndAnyPieceOfItsMaskCounts) {
  const auto always = [](int64_t, int64_t) { return true; };
  constexpr int32_t kTokens = (8 << 20) + 100;  // more than a piece of the mask
  std::vector<bool> trained(kTokens, false);
  Write("none.bin", FileOf({.tokens = Counting(0, kTokens), .trained = trained}));
  trained[kTokens - 50] = true;
  Write("one.bin", FileOf({.tokens = Counting(0, kTokens), .trained = trained}));
  const DataOptions options = {.length = 4, .vocab = kVocab};
  EXPECT_FALSE(*(*Source({"none.bin"}, options))->HasTarget(always));
  EXPECT_TRUE(*(*Source({"none.bin", "one.bin"}, options))->HasTarget(always));
  EXPECT_EQ((*Source({"one.bin"}, options))->HasTarget([](int64_t, int64_t) { return false; }).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace switchyard::train
