#include "server/jobs/pack/packer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "scheduler/base/io/fnv1a.h"
#include "tests/server/jobs/pack/pack_fixture.h"
#include "workers/train/data/token_file.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A file of tokens as workers read it.
struct Tokens {
  jobs::TokenFileHeader header;
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;
};

absl::StatusOr<Tokens> ReadTokens(const std::string& folder, const std::string& name) {
  const absl::StatusOr<RootDir> dir = RootDir::Open(folder, "the folder");
  if (!dir.ok()) return dir.status();
  const absl::StatusOr<train::TokenFile> file = train::TokenFile::Open(*dir, name);
  if (!file.ok()) return file.status();
  const absl::Status verified = file->Verify(259, [](int64_t, int64_t) { return true; });
  if (!verified.ok()) return verified;
  Tokens tokens = {file->header(), {}, {}};
  tokens.ids.resize(static_cast<size_t>(tokens.header.num_tokens));
  tokens.trained.resize(tokens.ids.size());
  const absl::Status read = file->Read(0, absl::MakeSpan(tokens.ids), absl::MakeSpan(tokens.trained));
  if (!read.ok()) return read;
  return tokens;
}

std::string LineOf(int i) {
  switch (i % 3) {
    case 0:
      return absl::StrCat(R"({"text": "line )", std::string(static_cast<size_t>(i % 97), 'x'), i, "\"}\n");
    case 1:
      return absl::StrCat(R"({"prompt": "p)", i, R"(", "completion": " c"})", "\n");
    default:
      return absl::StrCat(R"({"messages": [{"role": "user", "content": "q)", i,
                          R"("}, {"role": "assistant", "content": "a"}]})", "\n");
  }
}

std::string ManyLines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) lines += LineOf(i);
  return lines;
}

TEST_F(PackTest, WorkersReadWhatWasPacked) {
  const auto packed = PackText(
      "{\"text\": \"ab\"}\n"
      "{\"prompt\": \"cd\", \"completion\": \"e\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"f\"}, {\"role\": \"assistant\", \"content\": \"gh\"}]}\n");
  ASSERT_TRUE(packed.ok()) << packed.status();
  const absl::StatusOr<Tokens> tokens = ReadTokens(datasets_.path(), "out.bin");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->ids, Joined({{kBos},
                                 Bytes("ab"),
                                 {kEnd},  //
                                 {kBos},
                                 Bytes("cde"),
                                 {kEnd},  //
                                 Bytes("u:f"),
                                 {kEnd},
                                 Bytes("\na:gh"),
                                 {kEnd},
                                 Bytes("\n")}));
  EXPECT_EQ(tokens->trained, (std::vector<uint8_t>{1, 1, 1, 1,     //
                                                   0, 0, 0, 1, 1,  //
                                                   0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0}));
  EXPECT_EQ(tokens->header.token_bytes, 2);
  EXPECT_EQ(tokens->header.vocab_size, 259);
  EXPECT_EQ(tokens->header.tokenizer, Fnv1a(TinyTokenizerJson()));
  EXPECT_TRUE(tokens->header.masked);
  EXPECT_EQ(packed->documents, 3);
  EXPECT_EQ(packed->tokens, 20);
  EXPECT_EQ(packed->trained_tokens, 9);
  EXPECT_EQ(packed->bytes, std::filesystem::file_size(datasets_.path() + "/in.jsonl"));
}

TEST_F(PackTest, TokensBesideItAreCounted) {
  ASSERT_TRUE(PackText("{\"text\": \"ab\"}\n").ok());
  PackRequest request = Request();
  request.output = "next.bin";
  request.counted = {"out.bin", "out.bin"};
  const auto packed = Pack(request);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->tokens, 4);
  EXPECT_EQ(packed->counted_tokens, 8);
  request.replace = true;
  request.counted = {"none.bin"};
  EXPECT_EQ(Pack(request).status().code(), absl::StatusCode::kNotFound);
  request.counted = {"in.jsonl"};
  EXPECT_EQ(rpc::ReasonOf(Pack(request).status()), v1::DATASET_CHANGED);
}

TEST_F(PackTest, WhereAllIsTrainedThereIsNoMask) {
  ASSERT_TRUE(PackText("{\"text\": \"ab\"}\n{\"text\": \"\"}").ok());
  const absl::StatusOr<Tokens> tokens = ReadTokens(datasets_.path(), "out.bin");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_FALSE(tokens->header.masked);
  EXPECT_EQ(tokens->ids, Joined({{kBos}, Bytes("ab"), {kEnd, kBos, kEnd}}));
}

// More than one block per thread, and a mask whose bytes span blocks.
TEST_F(PackTest, TheSameBytesWhateverTheThreads) {
  datasets_.Write("in.jsonl", ManyLines(20'000));
  datasets_.Write("more.jsonl", ManyLines(7));
  PackRequest request = Request();
  request.inputs.push_back("more.jsonl");
  PackerOptions options = Options();
  options.num_threads = 1;
  ASSERT_TRUE(Pack(request, options).ok());
  options.num_threads = 4;
  request.output = "again.bin";
  const auto packed = Pack(request, options);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->documents, 20'007);
  EXPECT_TRUE(Output() == ReadFile(datasets_.path() + "/again.bin"));
  EXPECT_TRUE(ReadTokens(datasets_.path(), "out.bin").ok());
}

TEST_F(PackTest, BlankLinesAndOtherSystemsLineEndsAreFine) {
  ASSERT_TRUE(PackText("\xef\xbb\xbf{\"text\": \"ab\"}\r\n\r\n  \n{\"text\": \"c\"}\r\n").ok());
  const std::string windows = Output();
  std::filesystem::remove(datasets_.path() + "/out.bin");
  ASSERT_TRUE(PackText("{\"text\": \"ab\"}\n{\"text\": \"c\"}").ok());
  EXPECT_EQ(windows, Output());
}

TEST_F(PackTest, SpecialTokensInATextAreText) {
  ASSERT_TRUE(PackText("{\"text\": \"<|end|>\"}").ok());
  EXPECT_EQ(ReadTokens(datasets_.path(), "out.bin")->ids, Joined({{kBos}, Bytes("<|end|>"), {kEnd}}));
}

TEST_F(PackTest, TheServedModelsTokenizerNeedsNoFolder) {
  const auto text = TinyText();
  PackerOptions options = Options();
  options.tokenizer = text->tokenizer();
  options.chat_template = text->chat_template();
  options.model = checkpoints_.path() + "/models/tiny";
  datasets_.Write("in.jsonl", "{\"text\": \"ab\"}");
  PackRequest request = Request();
  request.tokenizer = "";
  ASSERT_TRUE(Pack(request, options).ok());
  EXPECT_EQ(ReadTokens(datasets_.path(), "out.bin")->header.tokenizer, Fnv1a(TinyTokenizerJson()));
  options.tokenizer = nullptr;
  request.output = "other.bin";
  const absl::Status none = Pack(request, options).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rpc::ViewError(rpc::ToGrpcStatus(none, "")).reason, "NO_TOKENIZER");
}

TEST_F(PackTest, IntoAJobsFolder) {
  datasets_.Write("in.jsonl", "{\"text\": \"ab\"}");
  PackRequest request = Request();
  request.output_root = PackRoot::kCheckpoints;
  request.output = "job-1/data/0.bin";
  ASSERT_TRUE(Pack(request).ok());
  EXPECT_TRUE(ReadTokens(checkpoints_.path() + "/job-1/data", "0.bin").ok());
}

TEST_F(PackTest, WhatIsThereStays) {
  datasets_.Write("out.bin", "precious");
  EXPECT_EQ(PackText("{\"text\": \"ab\"}").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Output(), "precious");
  PackRequest request = Request();
  request.replace = true;
  ASSERT_TRUE(Pack(request).ok());
  EXPECT_TRUE(ReadTokens(datasets_.path(), "out.bin").ok());
  EXPECT_THAT(Names(), ElementsAre("in.jsonl", "out.bin"));
}

// Another process makes the file during packing: progress is called before the last step.
TEST_F(PackTest, WhatCameMeanwhileStays) {
  datasets_.Write("in.jsonl", "{\"text\": \"ab\"}");
  const auto packed = Packer(Options()).Pack(Request(), [&](int64_t, int64_t) {
    datasets_.Write("out.bin", "precious");
    return true;
  });
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Output(), "precious");
  EXPECT_THAT(Names(), ElementsAre("in.jsonl", "out.bin"));
}

TEST_F(PackTest, WhatSomebodyElseIsWritingIsLeftAlone) {
  datasets_.Write(".out.bin.part", "theirs");
  const int fd = open((datasets_.path() + "/.out.bin.part").c_str(), O_RDONLY);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  EXPECT_EQ(PackText("{\"text\": \"ab\"}").status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReadFile(datasets_.path() + "/.out.bin.part"), "theirs");
  close(fd);  // killed: the next writer overwrites its file
  ASSERT_TRUE(PackText("{\"text\": \"ab\"}").ok());
  EXPECT_THAT(Names(), ElementsAre("in.jsonl", "out.bin"));
}

TEST_F(PackTest, CancelledItLeavesNothing) {
  datasets_.Write("in.jsonl", ManyLines(20'000));
  int calls = 0;
  int64_t done = 0, total = 0;
  const auto packed = Packer(Options()).Pack(Request(), [&](int64_t bytes_done, int64_t bytes_total) {
    EXPECT_GE(bytes_done, done);
    done = bytes_done;
    total = bytes_total;
    return ++calls < 3;
  });
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 3);
  EXPECT_LT(done, total);
  EXPECT_EQ(total, static_cast<int64_t>(ManyLines(20'000).size()));
  EXPECT_THAT(Names(), ElementsAre("in.jsonl"));
}

// A limit of 64 KiB on a file's size simulates a full disk.
TEST_F(PackTest, AFullDiskLeavesNothing) {
  datasets_.Write("in.jsonl", ManyLines(20'000));
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {64 << 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = Pack(Request()).status();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("out.bin: write: "));
  EXPECT_THAT(Names(), ElementsAre("in.jsonl"));
}

TEST_F(PackTest, AFileThatChangesIsNotTaken) {
  datasets_.Write("in.jsonl", ManyLines(20'000));
  const auto packed = Packer(Options()).Pack(Request(), [&](int64_t, int64_t) {
    std::ofstream(datasets_.path() + "/in.jsonl", std::ios::app) << "{\"text\": \"more\"}\n";
    return true;
  });
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(packed.status().message()), HasSubstr("in.jsonl: changed while it was read"));
  EXPECT_THAT(Names(), ElementsAre("in.jsonl"));
}

}  // namespace
}  // namespace switchyard::server
