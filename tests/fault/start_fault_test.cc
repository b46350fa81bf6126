// Starts that must fail: exit code 2, a sentence that names flag or file, and no process left.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr char kModelFlag[] = "--model=deploy/demo-model";

// Runs to its end.
void ExpectRefusal(const std::vector<std::string>& args, const std::string& message) {
  const auto process = Process::Start(args);
  ASSERT_NE(process, nullptr);
  EXPECT_EQ(process->Wait(absl::Seconds(60)).value_or(-1), 2) << process->Output();
  EXPECT_THAT(process->Output(), testing::ContainsRegex(message));
  EXPECT_THAT(process->Output(), testing::Not(testing::HasSubstr("ready: ")));
}

struct BadStart {
  const char* name;
  std::vector<std::string> flags;
  const char* message;  // a regular expression
};
std::string NameOf(const testing::TestParamInfo<BadStart>& info) { return info.param.name; }

class BadStartTest : public testing::TestWithParam<BadStart> {};

TEST_P(BadStartTest, ExitsWithTwoAndSaysWhy) {
  std::vector<std::string> args = {Binary("switchyard-server"), "--port=0", "--metrics_port=0"};
  args.insert(args.end(), GetParam().flags.begin(), GetParam().flags.end());
  ExpectRefusal(args, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Flags, BadStartTest,
    testing::Values(
        BadStart{"NoModel", {}, "--model: missing"},
        BadStart{"NoSuchModel", {"--model=/nonexistent"}, "/nonexistent: no such directory"},
        BadStart{"ModelByUrl", {"--model=https://example.org/model"}, "example.org/model: no such directory"},
        BadStart{"NotAModel", {"--model=deploy"}, "deploy: has no config.json; did you mean deploy/demo-model\\?"},
        BadStart{"NameOnAHub",
                 {"--model=Qwen/Qwen3-30B-A3B"},
                 "no such directory; .*: hf download Qwen/Qwen3-30B-A3B --local-dir Qwen3-30B-A3B"},
        BadStart{"PageOfAHub",
                 {"--model=https://huggingface.co/Qwen/Qwen3-30B-A3B"},
                 "no such directory; .*: hf download Qwen/Qwen3-30B-A3B --local-dir Qwen3-30B-A3B"},
        BadStart{"GgufFile", {"--model=model.gguf"}, "no such file"},
        BadStart{"UnknownFlag", {kModelFlag, "--modle=x"}, "unknown flag --modle; did you mean --model\\?"},
        BadStart{"SeveralUnknown", {"--xyzzyx=1", "--ports=2"}, "unknown flag --xyzzyx\n.*unknown flag --ports"},
        BadStart{"NotAFlag", {kModelFlag, "serve"}, "unexpected argument serve"},
        BadStart{"NoNumber", {kModelFlag, "--port=http"}, "Illegal value 'http' .* flag 'port'"},
        BadStart{"NoUnit", {kModelFlag, "--slow_client_timeout=5"}, "Illegal value '5' .* flag 'slow_client_timeout'"},
        BadStart{"NegativeTimeout",
                 {kModelFlag, "--max_deadline=-1s"},
                 "--max_deadline=-1s: must be within \\[1ms, 1000h\\]"},
        BadStart{"EndlessTimeout", {kModelFlag, "--step_timeout=inf"}, "--step_timeout=inf: must be within"},
        BadStart{"PortTooLarge", {kModelFlag, "--port=65536"}, "--port=65536: must be within"},
        BadStart{"OpenAddress", {kModelFlag, "--host=0.0.0.0"}, "--host=0.0.0.0: .*--insecure"},
        BadStart{
            "NoCollector", {kModelFlag, "--otlp_endpoint=collector:4318"}, "--otlp_endpoint=.*must begin with http"},
        BadStart{"RatioAboveOne",
                 {kModelFlag, "--otlp_endpoint=http://127.0.0.1:1", "--otlp_sample_ratio=1.5"},
                 "--otlp_sample_ratio=1.5: must be within \\[0, 1\\]"},
        BadStart{"RatioWithoutCollector", {kModelFlag, "--otlp_sample_ratio=0.5"}, "is for --otlp_endpoint"},
        BadStart{
            "RequestLogInNoFolder", {kModelFlag, "--request_log=/nonexistent/log"}, "--request_log=/nonexistent/log: "},
        BadStart{
            "RequestLogIsNoFile", {kModelFlag, "--request_log=/dev/null"}, "--request_log=/dev/null: not a regular"},
        BadStart{"OpenMetrics", {kModelFlag, "--metrics_host=0.0.0.0"}, "--metrics_host=0.0.0.0: .*--insecure"},
        BadStart{"AddressNotLocal",
                 {kModelFlag, "--host=192.0.2.1", "--insecure"},
                 "--port=0: cannot listen on 192.0.2.1:0"},
        BadStart{"BadDtype", {kModelFlag, "--dtype=int3"}, "--dtype=int3: must be one of"},
        BadStart{"FewerWorkersThanLocalOnes",
                 {kModelFlag, "--workers=1", "--local_workers=2"},
                 "--workers=1: fewer than --local_workers=2"},
        BadStart{"BatchBelowSequences",
                 {kModelFlag, "--max_batched_tokens=4", "--max_num_seqs=64"},
                 "max_batched_tokens=4 must be at least max_num_seqs=64"},
        BadStart{"SeveralOfBatching",
                 {kModelFlag, "--block_size=0", "--max_queue=0"},
                 "block_size=0 must be at least 1\n.*max_queue=0 must be at least 1"},
        BadStart{"LongerThanTheContext",
                 {kModelFlag, "--max_model_len=4096"},
                 "--max_model_len=4096: the model's context is 1024 tokens"},
        BadStart{"CacheForLessThanASequence",
                 {kModelFlag, "--kv_cache_bytes=1"},
                 "rank 0.*refused to start: .*kv_cache_bytes"},
        BadStart{"NoTokenizerFile", {kModelFlag, "--tokenizer=/nonexistent.json"}, "nonexistent.json: no such file"},
        BadStart{
            "TokenizerIsADevice", {kModelFlag, "--tokenizer=/dev/zero"}, "--tokenizer=/dev/zero: not a regular file"},
        BadStart{"TokenizerIsNone",
                 {kModelFlag, "--tokenizer=deploy/demo-model/config.json"},
                 "config.json: model: expected an object"},
        BadStart{
            "NoTemplateFile", {kModelFlag, "--chat_template=/nonexistent"}, "--chat_template=/nonexistent: no such"},
        BadStart{"NoTokenFile", {kModelFlag, "--join_token_file=/nonexistent"}, "=/nonexistent: cannot be read: No "},
        BadStart{"TokenFileIsADevice", {kModelFlag, "--join_token_file=/dev/null"}, "/dev/null: not a regular file"},
        BadStart{"NoWorkerProgram", {kModelFlag, "--worker_binary=/nonexistent"}, "cannot run /nonexistent"},
        // F23: a rank that fails at the start is named, soon.
        BadStart{"WorkerThatDies",
                 {kModelFlag, "--worker_binary=/bin/false"},
                 "worker 0 \\(rank 0\\) ended 5 times before the group formed, at last with exit code 1"},
        BadStart{"WorkerThatNeverComes",
                 {kModelFlag, "--workers=2", "--start_timeout=3s"},
                 "within --start_timeout=3s: 1 of 2 workers registered; none for rank 1"},
        BadStart{"AllAtOnce",
                 {"--threads=-1", "--model=/nonexistent", "--join_token_file=/dev/null"},
                 "no such directory\n.*--threads=-1.*\n.*--join_token_file=/dev/null: not a regular file"}),
    NameOf);

// A pod's status shows only the last line, so it must have the worker's own message, not that of its lost link.
TEST(RefusalTest, TheLastLineHasTheCause) {
  const auto process = Process::Start({Binary("switchyard-server"), kModelFlag, "--port=0", "--metrics_port=-1",
                                       "--local_workers=2", "--kv_cache_bytes=1"});
  ASSERT_NE(process, nullptr);
  EXPECT_EQ(process->Wait(absl::Seconds(60)).value_or(-1), 2);
  const std::string output(absl::StripAsciiWhitespace(process->Output()));
  EXPECT_THAT(output.substr(output.rfind('\n') + 1), testing::ContainsRegex("refused to start: .*kv_cache_bytes"));
  EXPECT_THAT(output, testing::Not(testing::HasSubstr("is lost")));
  EXPECT_THAT(output, testing::Not(testing::HasSubstr("its link ended")));
}

class BadWorkerStartTest : public testing::TestWithParam<BadStart> {};

TEST_P(BadWorkerStartTest, ExitsWithTwoAndSaysWhy) {
  std::vector<std::string> args = {Binary("switchyard-worker"), "--server=127.0.0.1:1"};
  args.insert(args.end(), GetParam().flags.begin(), GetParam().flags.end());
  ExpectRefusal(args, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Flags, BadWorkerStartTest,
    testing::Values(
        BadStart{"NoModel", {}, "--model: missing"},
        BadStart{"NoSuchModel", {"--model=/nonexistent"}, "model directory /nonexistent: no such directory"},
        BadStart{"NotAModel", {"--model=deploy"}, "deploy: has no config.json; did you mean deploy/demo-model\\?"},
        BadStart{"UnknownFlag", {kModelFlag, "--port=5"}, "unknown flag --port"},
        BadStart{"NoGpu", {kModelFlag, "--device=cuda:7"}, "cuda:7: (this program is built without CUDA|[0-7] found)"},
        BadStart{"OfGpusAlone",
                 {kModelFlag, "--gpu_memory_fraction=0.5", "--deterministic", "--cuda_graphs=false"},
                 "--gpu_memory_fraction=0.5: .*--device=cpu\n--deterministic=true: .*--device=cpu\n"
                 "--cuda_graphs=false: .*--device=cpu"},
        BadStart{"UnknownRole", {kModelFlag, "--role=watch"}, "--role=watch: must be serve, train or both"},
        BadStart{"TrainsWithoutRoots", {"--role=train"}, "--dataset_root: missing; .*\n--checkpoint_root: missing; "},
        BadStart{"TrainsWhatItServes",
                 {"--role=train", "--dataset_root=/tmp", "--checkpoint_root=/nonexistent", kModelFlag, "--dtype=bf16"},
                 "--checkpoint_root /nonexistent: No such file.*\n--model=.*: is for --role=serve or both\n"
                 "--dtype=bf16: is for --role=serve or both"},
        BadStart{"ServesWhatItTrains", {kModelFlag, "--dataset_root=/tmp"}, "--dataset_root=/tmp: is for --role=train"},
        BadStart{"BadDtype", {kModelFlag, "--dtype=int3"}, "int3"},
        BadStart{"EveryInterface", {kModelFlag, "--address=0.0.0.0"}, "--address: .*0.0.0.0.*loopback nor private"},
        BadStart{"EveryInterface6", {kModelFlag, "--address=::"}, "--address: .*loopback nor private"},
        BadStart{"PublicAddress", {kModelFlag, "--address=8.8.8.8"}, "--address: .*8.8.8.8"},
        BadStart{"PlaintextElsewhere",
                 {kModelFlag, "--server=8.8.8.8:5"},
                 "--server=8.8.8.8:5: .*wants --tls_ca, or --insecure"},
        BadStart{"NoTokenFile", {kModelFlag, "--join_token_file=/nonexistent"}, "=/nonexistent: cannot be read"},
        BadStart{"MetricsPort", {kModelFlag, "--metrics_port=65536"}, "--metrics_port=65536: must be within"},
        BadStart{
            "AllAtOnce", {"--threads=-1", "--device=tpu"}, "--model: missing.*\n.*--device=tpu.*\n.*--threads=-1"}),
    NameOf);

// A model's directory with one thing wrong.
struct BadModel {
  const char* name;
  std::function<void(const fs::path& dir)> spoil;
  const char* message;
};

void Write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
std::string Read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
void Replace(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = Read(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  Write(path, text.replace(at, from.size(), to));
}

class BadModelTest : public testing::TestWithParam<BadModel> {};

TEST_P(BadModelTest, IsNamedAndEndsTheServer) {
  const fs::path dir = fs::path(testing::TempDir()) / absl::StrCat("switchyard-bad-model-", getpid());
  fs::remove_all(dir);
  fs::create_directory(dir);
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors"})
    fs::copy_file(fs::path(kTinyModel) / name, dir / name);
  GetParam().spoil(dir);
  ExpectRefusal({Binary("switchyard-server"), "--model=" + dir.string(), "--port=0", "--metrics_port=-1"},
                GetParam().message);
  fs::remove_all(dir);
}

constexpr char kLfsPointer[] =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
const char kTensor[] = "model.layers.0.input_layernorm.weight";

INSTANTIATE_TEST_SUITE_P(
    Files, BadModelTest,
    testing::Values(
        BadModel{"CutWeights", [](const fs::path& dir) { fs::resize_file(dir / "model.safetensors", 100000); },
                 "shard model.safetensors: .*offsets .* do not match the file"},
        BadModel{"CorruptHeader", [](const fs::path& dir) { Replace(dir / "model.safetensors", "{\"", "[\""); },
                 "shard model.safetensors: header: syntax error at byte 0"},
        BadModel{"HugeHeader",
                 [](const fs::path& dir) { Write(dir / "model.safetensors", std::string(8, '\x7f') + "{}"); },
                 "shard model.safetensors: header length [0-9]+ exceeds file size 10"},
        BadModel{"MissingTensor",
                 [](const fs::path& dir) {
                   Replace(dir / "model.safetensors", kTensor, "model.layers.0.input_layernorm.weighX");
                 },
                 "tensor \"model.layers.0.input_layernorm.weight\": expected \\[[0-9]+\\], it is missing"},
        BadModel{"Pickle",
                 [](const fs::path& dir) { fs::rename(dir / "model.safetensors", dir / "pytorch_model.bin"); },
                 "pytorch_model.bin: unsupported format; only safetensors"},
        BadModel{"LinkOut",
                 [](const fs::path& dir) {
                   fs::remove(dir / "model.safetensors");
                   fs::create_symlink(fs::absolute(kTinyModel) / "model.safetensors", dir / "model.safetensors");
                 },
                 "model.safetensors: its link leads out of the model directory"},
        BadModel{"LfsPointer", [](const fs::path& dir) { Write(dir / "model.safetensors", kLfsPointer); },
                 "shard model.safetensors: is a pointer of Git LFS.*; run git lfs pull"},
        BadModel{"LfsPointerAsConfig", [](const fs::path& dir) { Write(dir / "config.json", kLfsPointer); },
                 "config.json: is a pointer of Git LFS"},
        BadModel{"LfsPointerAsTokenizer", [](const fs::path& dir) { Write(dir / "tokenizer.json", kLfsPointer); },
                 "tokenizer.json: is a pointer of Git LFS"},
        BadModel{"MissingShards",
                 [](const fs::path& dir) {
                   fs::rename(dir / "model.safetensors", dir / "model-00001-of-00003.safetensors");
                   Write(dir / "model.safetensors.index.json",
                         R"({"weight_map": {"a": "model-00001-of-00003.safetensors",
                             "b": "model-00002-of-00003.safetensors", "c": "model-00003-of-00003.safetensors"}})");
                 },
                 "of the 3 files that it names 2 are missing; is the download incomplete.*"
                 "Missing: model-00002-of-00003.safetensors, model-00003-of-00003.safetensors"},
        BadModel{"MissingIndex",
                 [](const fs::path& dir) {
                   fs::rename(dir / "model.safetensors", dir / "model-00001-of-00002.safetensors");
                 },
                 "neither model.safetensors nor model.safetensors.index.json, but other files of safetensors; is the"},
        BadModel{"GgufAsWeights",
                 [](const fs::path& dir) { fs::rename(dir / "model.safetensors", dir / "model.Q4_K_M.gguf"); },
                 "model.Q4_K_M.gguf: unsupported format; only safetensors"},
        BadModel{"GgufAlone",
                 [](const fs::path& dir) {
                   fs::rename(dir / "model.safetensors", dir / "model.Q4_K_M.gguf");
                   fs::remove(dir / "config.json");
                 },
                 "has no config.json, but model.Q4_K_M.gguf: give that file"},
        BadModel{"Adapter", [](const fs::path& dir) { fs::rename(dir / "config.json", dir / "adapter_config.json"); },
                 "has no config.json, but an adapter .LoRA."},
        BadModel{"Empty",
                 [](const fs::path& dir) {
                   fs::remove_all(dir);
                   fs::create_directory(dir);
                 },
                 "has no config.json; it is empty: download a model into it, hf download ORG/NAME --local-dir /"},
        BadModel{"FolderOfTheCache",
                 [](const fs::path& dir) {
                   fs::create_directories(dir / "snapshots" / "0123");
                   fs::rename(dir / "config.json", dir / "snapshots" / "0123" / "config.json");
                 },
                 "has no config.json; did you mean /.*/snapshots/0123\\?"},
        BadModel{"UnknownArchitecture",
                 [](const fs::path& dir) { Replace(dir / "config.json", "qwen3_moe", "llama_mo"); },
                 "config.json: unknown architecture \"llama_mo\"; known: "},
        BadModel{"HalfWrittenConfig", [](const fs::path& dir) { fs::resize_file(dir / "config.json", 100); },
                 "config.json: syntax error at byte"},
        BadModel{"AbsurdConfig",
                 [](const fs::path& dir) {
                   Replace(dir / "config.json", "\"vocab_size\": 256", "\"vocab_size\": 16777216");
                   Replace(dir / "config.json", "\"hidden_size\": 48", "\"hidden_size\": 1048576");
                 },
                 "config needs [0-9]+ bytes .*worker has [0-9]+ bytes available"},
        BadModel{"GenerationConfig",
                 [](const fs::path& dir) { Write(dir / "generation_config.json", R"({"top_p": 0})"); },
                 "generation_config.json: top_p: expected a number within \\(0, 1\\], found 0"},
        BadModel{"HalfWrittenTokenizer",
                 [](const fs::path& dir) { Write(dir / "tokenizer.json", R"({"model": {"type": "BPE", )"); },
                 "tokenizer.json: not JSON"},
        BadModel{"ChatTemplate",
                 [](const fs::path& dir) { Write(dir / "chat_template.jinja", "{% for m in messages %}"); },
                 "chat_template.jinja: chat template: the template ends before"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(StartTest, PortsInUseAreNamed) {
  const auto server = TestServer::Start({.model = kTinyModel, .workers = 1});
  ASSERT_NE(server, nullptr);
  const auto port_of = [](const std::string& address) { return address.substr(address.rfind(':') + 1); };
  const std::string grpc = port_of(server->address()), metrics = port_of(server->metrics_address());
  ExpectRefusal({Binary("switchyard-server"), kModelFlag, "--metrics_port=-1", "--port=" + grpc},
                absl::StrCat("--port=", grpc, ": cannot listen on 127.0.0.1:", grpc, " .is it in use"));
  ExpectRefusal({Binary("switchyard-server"), kModelFlag, "--port=0", "--metrics_port=" + metrics},
                absl::StrCat("--metrics_port=", metrics, ": cannot listen on 127.0.0.1:", metrics, " .is it in use"));
  EXPECT_TRUE(Generate(server->client(), IdsRequest({5, 6}, 2)).ok()) << "the first one is unharmed";
}

TEST(StartTest, TooFewOpenFilesAreReportedAtTheStart) {
  ExpectRefusal({"/bin/sh", "-c",
                 absl::StrCat("ulimit -n 100; exec ", Binary("switchyard-server"), " ", kModelFlag, " --port=0")},
                "open files: the limit is 100 \\(hard limit 100\\), 6536 are needed for --max_connections=512 at each "
                "of 3 ports");
  ExpectRefusal(
      {"/bin/sh", "-c",
       absl::StrCat("ulimit -n 1000; exec ", Binary("switchyard-worker"), " --server=127.0.0.1:1 --role=train")},
      "open files: the limit is 1000 \\(hard limit 1000\\), 2560 are needed for its links and the files of a job");
}

// The metrics page stays on 127.0.0.1 whatever --host is, and the processes are guarded.
TEST(StartTest, ProcessesAreGuardedAndMetricsStayAtHome) {
  const auto server = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--host=127.0.0.2"}});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->address().rfind("127.0.0.2:", 0), 0u) << server->address();
  EXPECT_EQ(server->metrics_address().rfind("127.0.0.1:", 0), 0u) << server->metrics_address();
  std::vector<pid_t> pids = server->WorkerPids();
  ASSERT_EQ(pids.size(), 1u);
  pids.push_back(server->process().pid());
  for (const pid_t pid : pids) {
    const fs::path proc = absl::StrCat("/proc/", pid);
    EXPECT_THAT(Read(proc / "status"), testing::HasSubstr("NoNewPrivs:\t1\n"));
    EXPECT_THAT(Read(proc / "limits"), testing::ContainsRegex("Max core file size +0 +0 "));
    EXPECT_EQ(Read(proc / "coredump_filter"), "00000000\n");
  }
}

}  // namespace
}  // namespace switchyard
