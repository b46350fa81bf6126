#include "scheduler/jobs/token_format.h"

#include <string>

#include "gtest/gtest.h"
#include "scheduler/base/io/byte_io.h"

namespace switchyard::jobs {
namespace {

constexpr TokenFileHeader kHeader = {.token_bytes = 2,
                                     .vocab_size = 6144,
                                     .tokenizer = 0x1234567890abcdef,
                                     .num_tokens = 1001,
                                     .num_documents = 3,
                                     .masked = true,
                                     .contents = 77};

std::string MessageOf(const std::string& bytes, int64_t file_bytes) {
  return std::string(DecodeTokenHeader(bytes, file_bytes).status().message());
}

TEST(TokenFormatTest, HeadersComeBack) {
  const std::string bytes = EncodeTokenHeader(kHeader);
  ASSERT_EQ(bytes.size(), static_cast<size_t>(kTokenHeaderBytes));
  const absl::StatusOr<TokenFileHeader> header = DecodeTokenHeader(bytes, kHeader.file_bytes());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->token_bytes, 2);
  EXPECT_EQ(header->vocab_size, 6144);
  EXPECT_EQ(header->tokenizer, 0x1234567890abcdefu);
  EXPECT_EQ(header->num_tokens, 1001);
  EXPECT_EQ(header->num_documents, 3);
  EXPECT_TRUE(header->masked);
  EXPECT_EQ(header->contents, 77u);
}

TEST(TokenFormatTest, PairsAreAFlag) {
  TokenFileHeader header = kHeader;
  header.pairs = true;
  header.num_documents = 4;
  const absl::StatusOr<TokenFileHeader> read = DecodeTokenHeader(EncodeTokenHeader(header), header.file_bytes());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->pairs);
  EXPECT_TRUE(read->masked);
  EXPECT_FALSE(DecodeTokenHeader(EncodeTokenHeader(kHeader), kHeader.file_bytes())->pairs);
  header.num_documents = 3;
  EXPECT_EQ(MessageOf(EncodeTokenHeader(header), header.file_bytes()),
            "token file: is of pairs, but has 3 documents, an odd number");
}

TEST(TokenFormatTest, PartsFollowEachOther) {
  EXPECT_EQ(kHeader.tokens_at(), 72);
  EXPECT_EQ(kHeader.mask_at(), 2080);       // 72 + 2002, padded
  EXPECT_EQ(kHeader.documents_at(), 2208);  // + 126, padded
  EXPECT_EQ(kHeader.file_bytes(), 2232);
  TokenFileHeader plain = kHeader;
  plain.masked = false;
  EXPECT_EQ(plain.documents_at(), 2080);
}

TEST(TokenFormatTest, EveryFlippedBitIsFound) {
  const std::string good = EncodeTokenHeader(kHeader);
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeTokenHeader(bytes, kHeader.file_bytes()).ok()) << "bit " << bit;
  }
}

TEST(TokenFormatTest, EveryTruncationIsFound) {
  const std::string good = EncodeTokenHeader(kHeader);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(DecodeTokenHeader(good.substr(0, size), static_cast<int64_t>(size)).ok()) << size;
  }
}

TEST(TokenFormatTest, SaysWhatIsWrong) {
  EXPECT_EQ(MessageOf(EncodeTokenHeader(kHeader), 2231), "token file: its header wants 2232 bytes, it has 2231");
  EXPECT_EQ(MessageOf("{\"text\": \"a\"}", 13),
            "token file: begins neither as one of ours (SYTOKENS) nor as one of llm.c");
  TokenFileHeader wrong = kHeader;
  wrong.token_bytes = 3;
  EXPECT_EQ(MessageOf(EncodeTokenHeader(wrong), 100), "token file: 3 bytes a token, wants 2 or 4");
  wrong = kHeader;
  wrong.num_tokens = 0;
  EXPECT_NE(MessageOf(EncodeTokenHeader(wrong), 100).find("tokens"), std::string::npos);
  wrong = kHeader;
  wrong.num_documents = 1002;
  EXPECT_NE(MessageOf(EncodeTokenHeader(wrong), 100).find("documents"), std::string::npos);
  std::string newer = EncodeTokenHeader(kHeader);
  newer[8] = 2;
  EXPECT_EQ(MessageOf(newer, 100), "token file: version 2, this program reads 1");
}

std::string Llmc(int32_t magic, int32_t version, int32_t tokens) {
  std::string bytes;
  AppendInt(magic, &bytes);
  AppendInt(version, &bytes);
  AppendInt(tokens, &bytes);
  bytes.resize(kLlmcHeaderBytes);
  return bytes;
}

TEST(TokenFormatTest, ReadsLlmcs) {
  const absl::StatusOr<TokenFileHeader> narrow = DecodeTokenHeader(Llmc(20240520, 1, 10), 1044);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_EQ(narrow->token_bytes, 2);
  EXPECT_EQ(narrow->tokens_at(), 1024);
  EXPECT_EQ(narrow->document_token, 50256);
  EXPECT_FALSE(narrow->masked);
  const absl::StatusOr<TokenFileHeader> wide = DecodeTokenHeader(Llmc(20240801, 7, 10), 1064);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(wide->token_bytes, 4);
  EXPECT_EQ(wide->document_token, 128000);
  EXPECT_EQ(MessageOf(Llmc(20240520, 1, 10), 1043), "token file: its header wants 1044 bytes, it has 1043");
  EXPECT_EQ(MessageOf(Llmc(20240801, 1, 10), 1064), "token file: llm.c version 1 with magic 20240801, wants 7");
  EXPECT_EQ(MessageOf(Llmc(20240520, 1, -1), 1024), "token file: llm.c header: -1 tokens, wants at least 1");
  EXPECT_EQ(MessageOf(Llmc(20240520, 1, 10).substr(0, 500), 500),
            "token file: an llm.c header has 1024 bytes, the file 500");
}

TEST(TokenFormatTest, AWindowWantsItsLastTarget) {
  JobSpec spec;
  spec.sequence_length = 8;
  EXPECT_FALSE(HasWindow(spec, 8, 1));
  EXPECT_TRUE(HasWindow(spec, 9, 1));
  EXPECT_EQ(TargetSearchOf(spec).length, 8);
  spec.document_mask = true;
  spec.packing = WindowPacking::kBestFit;
  EXPECT_FALSE(HasWindow(spec, 8, 8)) << "documents of one token have no target";
  EXPECT_TRUE(HasWindow(spec, 9, 8));
  EXPECT_TRUE(HasWindow(spec, 8, 0)) << "nobody knows";
  EXPECT_EQ(TargetSearchOf(spec).length, 1) << "no tail is left out";
  EXPECT_TRUE(TargetSearchOf(spec).document_mask);
}

}  // namespace
}  // namespace switchyard::jobs
