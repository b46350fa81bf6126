// Windows of whole documents, and datasets with weights: what each sample of a job is.
#include "workers/train/data/document_windows.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/jobs/job_spec.h"
#include "tests/workers/model/temp_dir.h"
#include "tests/workers/train/token_contents.h"
#include "workers/train/data/best_fit.h"
#include "workers/train/data/data_source.h"
#include "workers/train/data/mixture_order.h"

namespace switchyard::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kVocab = 1 << 16;

// Documents of these lengths; token t of document d is a function of both.
struct Corpus {
  std::vector<int64_t> lengths;
  uint32_t seed = 1;

  int32_t Token(size_t document, int64_t at) const {
    return static_cast<int32_t>((document * 7919 + static_cast<size_t>(at) * 31 + seed) % kVocab);
  }
  bool Trained(size_t document, int64_t at) const { return (document * 5 + static_cast<size_t>(at) * 3) % 7 < 4; }
  TokenContents Contents() const {
    TokenContents contents;
    contents.documents.clear();
    for (size_t d = 0; d < lengths.size(); ++d) {
      contents.documents.push_back(static_cast<int64_t>(contents.tokens.size()));
      for (int64_t i = 0; i < lengths[d]; ++i) {
        contents.tokens.push_back(Token(d, i));
        contents.trained.push_back(Trained(d, i));
      }
    }
    return contents;
  }
};

Corpus RandomCorpus(size_t documents, int64_t longest, uint32_t seed) {
  Corpus corpus = {.lengths = {}, .seed = seed};
  std::minstd_rand random(seed);
  for (size_t d = 0; d < documents; ++d) corpus.lengths.push_back(1 + static_cast<int64_t>(random() % longest));
  return corpus;
}

class DocumentWindowsTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_.path() + "/" + name, std::ios::binary) << bytes;
  }
  absl::StatusOr<std::unique_ptr<DataSource>> Source(const std::vector<std::string>& names, DataOptions options) {
    const absl::StatusOr<RootDir> dir = RootDir::Open(dir_.path(), "the folder");
    if (!dir.ok()) return dir.status();
    std::vector<TokenFile> files;
    for (const std::string& name : names) {
      absl::StatusOr<TokenFile> file = TokenFile::Open(*dir, name);
      if (!file.ok()) return file.status();
      files.push_back(*std::move(file));
    }
    options.vocab = kVocab;
    return DataSource::Create(std::move(files), options);
  }
  static DataOptions BestFit(int64_t length, uint64_t seed = 3) {
    return {.length = length, .seed = seed, .document_mask = true, .packing = jobs::WindowPacking::kBestFit};
  }
  std::unique_ptr<DataSource> Of(const Corpus& corpus, const DataOptions& options) {
    const std::string name = absl::StrCat("corpus-", num_corpora_++, ".bin");
    Write(name, FileOf(corpus.Contents(), kVocab));
    absl::StatusOr<std::unique_ptr<DataSource>> source = Source({name}, options);
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }

  const model::TempDir dir_;
  int num_corpora_ = 0;
};

// A text within rows: its tokens and targets.
using Text = std::pair<std::vector<int32_t>, std::vector<int32_t>>;

std::vector<Text> TextsOf(const TrainRows& rows) {
  std::vector<Text> texts;
  std::vector<int32_t> borders = rows.borders;
  borders.push_back(static_cast<int32_t>(rows.tokens.size()));
  int32_t begin = 0;
  for (const int32_t border : borders) {
    texts.push_back({{rows.tokens.begin() + begin, rows.tokens.begin() + border},
                     {rows.targets.begin() + begin, rows.targets.begin() + border}});
    begin = border;
  }
  return texts;
}

// What the corpus should give, cut at its documents' own begins.
std::multiset<Text> Wanted(const Corpus& corpus, int64_t length) {
  std::multiset<Text> wanted;
  for (size_t d = 0; d < corpus.lengths.size(); ++d) {
    for (int64_t first = 0; first + 1 < corpus.lengths[d]; first += length) {
      Text text;
      for (int64_t i = first; i < std::min(first + length, corpus.lengths[d] - 1); ++i) {
        text.first.push_back(corpus.Token(d, i));
        text.second.push_back(corpus.Trained(d, i + 1) ? corpus.Token(d, i + 1) : -1);
      }
      wanted.insert(std::move(text));
    }
  }
  return wanted;
}

TEST(BestFitTest, TheLongestGoFirstAndEachGoesWhereItLeavesTheLeast) {
  // 6; 5; 4 beside 6; 3 beside 5; 2 into what remains of 5 and 3; 1 into nothing: a window of its own.
  const std::vector<int32_t> rows = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(PackBestFit(rows, 10, 0), ElementsAre(ElementsAre(5, 3), ElementsAre(4, 2, 1), ElementsAre(0)));
  EXPECT_TRUE(PackBestFit({}, 10, 0).empty());
  // Of the same length the seed decides.
  const std::vector<int32_t> same(40, 5);
  EXPECT_EQ(PackBestFit(same, 10, 1), PackBestFit(same, 10, 1));
  EXPECT_NE(PackBestFit(same, 10, 1), PackBestFit(same, 10, 2));
}

// Pairs by their two documents: neighbours in one window, or left out.
TEST_F(DocumentWindowsTest, APairIsInOneWindowOrLeftOut) {
  for (const int64_t length : {13, 64, 200}) {
    Corpus corpus = RandomCorpus(2 * kDocumentsOfGroup + 100, 40, 6);
    Write("pairs.bin", FileOf(corpus.Contents(), kVocab, /*pairs=*/true));
    absl::StatusOr<std::unique_ptr<DataSource>> source = Source({"pairs.bin", "pairs.bin"}, BestFit(length));
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_TRUE((*source)->of_pairs());
    const auto pairs = static_cast<int64_t>(corpus.lengths.size() / 2);
    EXPECT_THAT((*source)->first_pairs(), ElementsAre(0, pairs, 2 * pairs));
    const auto rows_of = [&](int64_t pair, int64_t which) {
      return corpus.lengths[static_cast<size_t>(2 * (pair % pairs) + which)] - 1;
    };
    std::set<int64_t> found;
    for (int64_t window = 0; window < (*source)->num_windows(); ++window) {
      const absl::StatusOr<TrainRows> rows = (*source)->Windows({window});
      ASSERT_TRUE(rows.ok()) << rows.status();
      ASSERT_LE(rows->tokens.size(), static_cast<size_t>(length));
      ASSERT_EQ(rows->borders.size() + 1, 2 * rows->pairs.size());
      EXPECT_THAT(*(*source)->PairsOf(window), testing::ElementsAreArray(rows->pairs));
      const std::vector<Text> texts = TextsOf(*rows);
      for (size_t i = 0; i < texts.size(); ++i) {
        const int64_t pair = rows->pairs[i / 2];
        EXPECT_TRUE(i % 2 == 1 || found.insert(pair).second) << pair;
        ASSERT_EQ(static_cast<int64_t>(texts[i].first.size()), rows_of(pair, static_cast<int64_t>(i % 2)));
        EXPECT_EQ(texts[i].first[0], corpus.Token(2 * static_cast<size_t>(pair % pairs) + i % 2, 0));
      }
    }
    int64_t left_out = 0;
    for (int64_t pair = 0; pair < 2 * pairs; ++pair) {
      const int64_t chosen = rows_of(pair, 0), rejected = rows_of(pair, 1);
      const bool fits = chosen > 0 && rejected > 0 && chosen + rejected <= length;
      EXPECT_EQ(found.count(pair), fits ? 1u : 0u) << pair;
      left_out += fits ? 0 : 1;
    }
    EXPECT_GT(left_out, 0);
    EXPECT_THAT((*source)->ToString(),
                HasSubstr(absl::StrCat(" from ", 2 * pairs, " pairs, ", left_out, " of them longer and left out; ")));
  }
}

TEST_F(DocumentWindowsTest, PairsAreOfBestFitAndOfAllFilesOrNone) {
  const Corpus corpus = RandomCorpus(8, 9, 6);
  Write("pairs.bin", FileOf(corpus.Contents(), kVocab, /*pairs=*/true));
  Write("texts.bin", FileOf(corpus.Contents(), kVocab));
  EXPECT_THAT(Source({"texts.bin", "pairs.bin"}, BestFit(40)).status().ToString(),
              HasSubstr("texts.bin has none, pairs.bin has pairs of answers; all files or none may"));
  EXPECT_THAT(Source({"pairs.bin"}, {.length = 4, .document_mask = true}).status().ToString(),
              HasSubstr("pairs.bin has pairs of answers, which go with packing best_fit alone"));
  EXPECT_THAT(Source({"pairs.bin"}, BestFit(1)).status().ToString(),
              HasSubstr("none of 4 pairs of answers in 1 files fits into sequence_length 1, which has to hold the "
                        "prompt twice and both answers"));
  Write("odd.bin", FileOf(RandomCorpus(7, 9, 6).Contents(), kVocab, /*pairs=*/true));
  EXPECT_THAT(Source({"odd.bin"}, BestFit(40)).status().ToString(),
              HasSubstr("is of pairs, but has 7 documents, an odd number"));
}

TEST_F(DocumentWindowsTest, EveryDocumentIsThereOnceAndWhole) {
  // More documents than a group; windows longer and shorter than the longest; one token is no document to train.
  for (const int64_t length : {7, 64, 300}) {
    const Corpus corpus = RandomCorpus(2 * kDocumentsOfGroup + 100, 90, 5);
    const std::unique_ptr<DataSource> source = Of(corpus, BestFit(length));
    const absl::StatusOr<TrainRows> first = source->Samples(0, 1);
    ASSERT_TRUE(first.ok()) << first.status();
    std::multiset<Text> found;
    for (int64_t window = 0; window < source->num_windows(); ++window) {
      const absl::StatusOr<TrainRows> rows = source->Samples(window, 1);
      ASSERT_TRUE(rows.ok()) << rows.status();
      ASSERT_LE(rows->tokens.size(), static_cast<size_t>(length));
      ASSERT_TRUE(rows->packed);
      for (Text& text : TextsOf(*rows)) found.insert(std::move(text));
    }
    EXPECT_TRUE(found == Wanted(corpus, length)) << length;
    std::multiset<Text> next;
    for (int64_t window = 0; window < source->num_windows(); ++window) {
      for (Text& text : TextsOf(*source->Samples(source->num_windows() + window, 1))) next.insert(std::move(text));
    }
    EXPECT_TRUE(next == found) << "the next epoch, " << length;
  }
}

TEST_F(DocumentWindowsTest, WindowsAreNearlyFull) {
  const std::unique_ptr<DataSource> source = Of(RandomCorpus(5000, 200, 7), BestFit(512));
  EXPECT_THAT(source->ToString(),
              HasSubstr(" sequences of 512 tokens from 5000 documents, 0 of them longer and cut; "));
  int64_t rows = 0;
  for (int64_t window = 0; window < source->num_windows(); ++window) {
    rows += static_cast<int64_t>(source->Samples(window, 1)->tokens.size());
  }
  EXPECT_GT(rows, 995 * source->num_windows() * 512 / 1000);
}

// A document's bits do not depend on what was asked before, so neither on ranks nor on restarts.
TEST_F(DocumentWindowsTest, ASampleIsAFunctionOfSeedAndFiles) {
  const Corpus corpus = RandomCorpus(3 * kDocumentsOfGroup, 60, 9);
  const std::unique_ptr<DataSource> source = Of(corpus, BestFit(128)), again = Of(corpus, BestFit(128)),
                                    other = Of(corpus, BestFit(128, /*seed=*/4));
  bool differs = false;
  for (int64_t sample = 200; sample-- > 0;) {
    const TrainRows rows = *source->Samples(sample, 1);
    EXPECT_EQ(rows.tokens, again->Samples(sample, 1)->tokens);
    EXPECT_EQ(rows.borders, again->Samples(sample, 1)->borders);
    differs |= rows.tokens != other->Samples(sample, 1)->tokens;
  }
  EXPECT_TRUE(differs);
  // A batch is its samples, one behind the other.
  const TrainRows batch = *source->Samples(10, 3);
  std::vector<int32_t> tokens;
  for (int64_t sample = 10; sample < 13; ++sample) {
    const TrainRows rows = *source->Samples(sample, 1);
    if (!tokens.empty()) {
      EXPECT_THAT(batch.borders, testing::Contains(static_cast<int32_t>(tokens.size())));
    }
    tokens.insert(tokens.end(), rows.tokens.begin(), rows.tokens.end());
  }
  EXPECT_EQ(batch.tokens, tokens);
}

TEST_F(DocumentWindowsTest, OneDocumentIsCutAsIfItWereConcatenatedAndKeepsItsTail) {
  const Corpus corpus = {.lengths = {26}};
  DataOptions options = BestFit(5);
  options.in_order = true;
  const std::unique_ptr<DataSource> source = Of(corpus, options);
  ASSERT_EQ(source->num_windows(), 5);
  DataOptions before = options;
  before.packing = jobs::WindowPacking::kConcatenate;
  EXPECT_EQ(source->Samples(0, 5)->tokens, Of(corpus, before)->Samples(0, 5)->tokens);
  EXPECT_EQ(source->Samples(0, 5)->targets, Of(corpus, before)->Samples(0, 5)->targets);
  const std::unique_ptr<DataSource> longer = Of({.lengths = {28}}, options);
  ASSERT_EQ(longer->num_windows(), 6);
  EXPECT_EQ(longer->Samples(5, 1)->tokens.size(), 2u);
  EXPECT_EQ(Of({.lengths = {28}}, before)->num_windows(), 5);
}

TEST_F(DocumentWindowsTest, DocumentsOfLlmcsFilesAreFoundByTheirToken) {
  Write("a.bin", LlmcFileOf({9, 8, 50256, 3, 4, 5, 50256, 6, 50256, 50256, 7, 7, 7}));
  DataOptions options = BestFit(8);
  options.in_order = true;
  const auto source = Source({"a.bin"}, options);
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<std::vector<int32_t>> found;
  for (int64_t window = 0; window < (*source)->num_windows(); ++window) {
    for (const Text& text : TextsOf(*(*source)->Samples(window, 1))) found.push_back(text.first);
  }
  EXPECT_THAT(found, testing::UnorderedElementsAre(ElementsAre(9), ElementsAre(50256, 3, 4), ElementsAre(50256),
                                                   ElementsAre(50256, 7, 7)));
}

TEST_F(DocumentWindowsTest, WhatCannotBeIsNamed) {
  Write("ones.bin", FileOf({.tokens = {1, 2, 3}, .documents = {0, 1, 2}}, kVocab));
  EXPECT_EQ(Source({"ones.bin"}, BestFit(8)).status().message(),
            "data: 1 files of 3 tokens hold no document of 2 tokens or more");
  Write("bad.bin", FileOf({.tokens = {1, 2, 3, 4, 5}, .documents = {0, 3, 3}}, kVocab));
  EXPECT_EQ(Source({"bad.bin"}, BestFit(8)).status().message(),
            "bad.bin: document 2 begins at token 3 of 5, expected more than 3");
  Write("late.bin", FileOf({.tokens = {1, 2, 3, 4, 5}, .documents = {1, 3}}, kVocab));
  EXPECT_THAT(std::string(Source({"late.bin"}, BestFit(8)).status().message()),
              HasSubstr("late.bin: document 0 begins at token 1 of 5"));
  Write("good.bin", FileOf({.tokens = {1, 2, 3, 4, 5}, .documents = {0, 3}}, kVocab));
  DataOptions stopped = BestFit(8);
  stopped.progress = [](int64_t, int64_t) { return false; };
  EXPECT_EQ(Source({"good.bin"}, stopped).status().code(), absl::StatusCode::kCancelled);
  DataOptions weighted = BestFit(8);
  weighted.weights = {1, 2};
  EXPECT_EQ(Source({"good.bin", "ones.bin"}, weighted).status().message(),
            "data: ones.bin has a weight, but its 3 tokens fill no window of 8");
  weighted.weights = {1};
  EXPECT_EQ(Source({"good.bin", "ones.bin"}, weighted).status().message(), "data: 1 weights of 2 files");
}

TEST_F(DocumentWindowsTest, AFileThatChanges) {
  const std::unique_ptr<DataSource> source = Of(RandomCorpus(2 * kDocumentsOfGroup, 60, 9), BestFit(128));
  Write("corpus-0.bin", FileOf(RandomCorpus(100, 60, 9).Contents(), kVocab));
  EXPECT_THAT(std::string(source->Samples(0, 1).status().message()),
              HasSubstr("corpus-0.bin: changed while it was read"));
}

// Every token of a document but its first is in a window.
TEST_F(DocumentWindowsTest, ATargetOfATailCounts) {
  std::vector<bool> trained(11, false);
  trained[10] = true;
  Write("a.bin", FileOf({.tokens = std::vector<int32_t>(11, 1), .trained = trained, .documents = {0, 9}}, kVocab));
  const auto always = [](int64_t, int64_t) { return true; };
  EXPECT_TRUE(*(*Source({"a.bin"}, BestFit(4)))->HasTarget(always));
  DataOptions before = BestFit(4);
  before.packing = jobs::WindowPacking::kConcatenate;
  EXPECT_FALSE(*(*Source({"a.bin"}, before))->HasTarget(always));
}

TEST(MixtureOrderTest, EveryRunOfSamplesIsMixedAsTheWeightsSay) {
  for (const std::vector<double>& weights :
       {std::vector<double>{3, 1}, {1, 1}, {0.2, 0.5, 0.3}, {1000, 1, 7, 50, 13}, {1, 16383}}) {
    const MixtureOrder order(weights);
    double sum = 0;
    for (const double weight : weights) sum += weight;
    std::vector<int64_t> counts(weights.size(), 0);
    for (int64_t sample = 0; sample < 3 * jobs::kMixtureSequences; ++sample) {
      const MixtureOrder::Sample of = order.Of(sample);
      ASSERT_EQ(of.index, counts[static_cast<size_t>(of.dataset)]++) << "each sample of a dataset once, in its order";
      if (sample % 100 != 0) continue;
      for (size_t d = 0; d < weights.size(); ++d) {
        ASSERT_NEAR(static_cast<double>(counts[d]), static_cast<double>(sample + 1) * weights[d] / sum, 4) << sample;
      }
    }
    EXPECT_EQ(order.Of(5 * jobs::kMixtureSequences + 11).dataset, order.Of(11).dataset);
  }
}

TEST_F(DocumentWindowsTest, WeightsSayHowOftenADatasetIsRead) {
  // 40 windows and 10; the second comes three times as often as the first.
  const auto tokens = [](int32_t begin, int32_t count) {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < count; ++i) out.push_back(begin + i);
    return out;
  };
  Write("a.bin", FileOf({.tokens = tokens(0, 201)}, kVocab));
  Write("b.bin", FileOf({.tokens = tokens(1000, 51)}, kVocab));
  DataOptions options = {.length = 5, .seed = 2, .weights = {1, 3}};
  const auto source = Source({"a.bin", "b.bin"}, options);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->num_windows(), 50);
  std::map<int32_t, int> seen;
  for (int64_t sample = 0; sample < 160; ++sample) ++seen[(*source)->Samples(sample, 1)->tokens[0]];
  EXPECT_EQ(seen.size(), 50u);
  for (const auto& [first, times] : seen) EXPECT_EQ(times, first < 1000 ? 1 : 12) << first;
  // The same file twice has two orders.
  options.weights = {1, 1};
  const auto twice = Source({"a.bin", "a.bin"}, options);
  ASSERT_TRUE(twice.ok()) << twice.status();
  int same = 0;
  for (int64_t sample = 0; sample < 40; sample += 2) {
    same += (*twice)->Samples(sample, 1)->tokens == (*twice)->Samples(sample + 1, 1)->tokens ? 1 : 0;
  }
  EXPECT_LT(same, 10);
}

}  // namespace
}  // namespace switchyard::train
