#include "server/text/tokenizer/gguf_pre_tokenizers.h"

namespace switchyard::tokenizer {
namespace {

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen35[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kGpt4o[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekken[] = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                           R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                           R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Published with sets inside sets: [\p{Lu}…&&[^\p{Han}]].
constexpr char kKimi[] =
    R"(\p{Han}+|)"
    R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kBailing[] =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr char kSeed[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kDigit[] = R"(\p{N})";
constexpr char kLineEnd[] = R"([\r\n])";
constexpr char kWideCjk[] = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+";
constexpr char kDeepSeekWords[] =
    R"(\s?)"
    "[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373"
    "\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F"
    "\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77"
    "\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-"
    "\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC"
    "\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-"
    "\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3"
    "\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17"
    "\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-"
    "\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+";
constexpr char kDeepSeekMarks[] = R"(\s?)"
                                  "[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+";
constexpr char kDeepSeek3[] = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
                              R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kGpt2Stages[] = {kGpt2};
constexpr const char* kLlama3Stages[] = {kLlama3};
constexpr const char* kQwen2Stages[] = {kQwen2};
constexpr const char* kQwen35Stages[] = {kQwen35};
constexpr const char* kGpt4oStages[] = {kGpt4o};
constexpr const char* kTekkenStages[] = {kTekken};
constexpr const char* kKimiStages[] = {kKimi};
constexpr const char* kBailingStages[] = {kBailing};
constexpr const char* kSeedStages[] = {kSeed};
constexpr const char* kDigitsStages[] = {kDigit, kGpt2};
constexpr const char* kDeepSeek3Stages[] = {R"(\p{N}{1,3})", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+", kDeepSeek3};
constexpr const char* kDeepSeekStages[] = {kLineEnd, kDeepSeekWords, kDeepSeekMarks, R"(\s+$)", kWideCjk, kDigit};
constexpr const char* kCoderStages[] = {kLineEnd, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kWideCjk, kDigit};

constexpr GgufPreTokenizer kPreTokenizers[] = {
    {.name = "gpt-2", .stages = kGpt2Stages},
    {.name = "phi-2", .stages = kGpt2Stages},
    {.name = "olmo", .stages = kGpt2Stages, .nfc = true},
    {.name = "llama-bpe", .stages = kLlama3Stages, .ignore_merges = true, .adds_bos = true},
    {.name = "llama3", .stages = kLlama3Stages, .ignore_merges = true, .adds_bos = true},
    {.name = "llama-v3", .stages = kLlama3Stages, .ignore_merges = true, .adds_bos = true},
    {.name = "dbrx", .stages = kLlama3Stages},
    {.name = "smaug-bpe", .stages = kLlama3Stages},
    {.name = "glm4", .stages = kLlama3Stages},
    {.name = "chatglm-bpe", .stages = kLlama3Stages},
    {.name = "qwen2", .stages = kQwen2Stages, .nfc = true},
    {.name = "deepseek-r1-qwen", .stages = kQwen2Stages, .nfc = true},
    {.name = "hunyuan", .stages = kQwen2Stages, .nfc = true},
    {.name = "qwen35", .stages = kQwen35Stages, .nfc = true},
    {.name = "gpt-4o", .stages = kGpt4oStages},
    {.name = "llama4", .stages = kGpt4oStages},
    {.name = "minimax-m2", .stages = kGpt4oStages},
    {.name = "tekken", .stages = kTekkenStages, .ignore_merges = true, .adds_bos = true},
    {.name = "kimi-k2", .stages = kKimiStages},
    {.name = "bailingmoe", .stages = kBailingStages, .nfc = true},
    {.name = "bailingmoe2", .stages = kBailingStages, .nfc = true},
    {.name = "seed-coder", .stages = kSeedStages},
    {.name = "refact", .stages = kDigitsStages},  // Granite's, too
    {.name = "starcoder", .stages = kDigitsStages},
    {.name = "smollm", .stages = kDigitsStages},
    {.name = "deepseek-llm", .stages = kDeepSeekStages},
    {.name = "deepseek-coder", .stages = kCoderStages},
    {.name = "deepseek-v3", .stages = kDeepSeek3Stages},
    {.name = "hunyuan-dense", .stages = kDeepSeek3Stages},
};

}  // namespace

absl::Span<const GgufPreTokenizer> GgufPreTokenizers() { return kPreTokenizers; }

}  // namespace switchyard::tokenizer
