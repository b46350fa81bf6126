// Formats whose arguments are keys and values between markers: Qwen3-Coder, GLM, MiniMax.
#include <time.h>

#include "tests/server/text/output/parse.h"

namespace switchyard::text::parse {
namespace {

// A call in Qwen3-Coder's format, of a parameter's value.
std::string Coder(absl::string_view key, absl::string_view value) {
  return absl::StrCat("<tool_call>\n<function=get_weather>\n<parameter=", key, ">\n", value,
                      "\n</parameter>\n</function>\n</tool_call>");
}

TEST(OutputParser, Qwen3Coder) {
  ExpectCases(
      Format("qwen3_coder"),
      {{"See <function> <tool_call>?", "C(See <function> <tool_call>?)"},
       {Coder("city", "Paris"), "0:get_weather({\"city\": \"Paris\"})."},
       {"I will.\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n"
        "<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "C(I will.\n\n)0:now({}).1:get_weather({\"city\": \"Rome\", \"days\": 3})."},
       // Text in many lines, with what JSON escapes, and what looks like a marker.
       {Coder("city", "\n  \"a\\b\"\t{</param>\n</tool_call>\n\n"),
        "0:get_weather({\"city\": \"\\n  \\\"a\\\\b\\\"\\t{</param>\\n</tool_call>\\n\\n\"})."},
       {Coder("city", "日本 🙂"), "0:get_weather({\"city\": \"日本 🙂\"})."},
       {Coder("city", ""), "0:get_weather({\"city\": \"\"})."},
       {"<tool_call><function=get_weather><parameter=city>Rome</parameter></function></tool_call> Text",
        "0:get_weather({\"city\": \"Rome\"}).C( Text)"},
       // Without the outer marker, if the request has the function.
       {"<function=now></function>", "0:now({})."},
       {"<function=other></function>", "C(<function=other></function>)"},
       {"<tool_call><function=other></function></tool_call>", "0:other({})."},
       // Values that are not closed.
       {"<tool_call><function=get_weather><parameter=city>\nRome\n<parameter=days>\n3\n</function></tool_call>",
        "0:get_weather({\"city\": \"Rome\", \"days\": 3})."},
       {"<tool_call>{\"name\": \"now\"}</tool_call>", "C(<tool_call>{\"name\": \"now\"}</tool_call>)"},
       {"<tool_call>\n<function=now>\ntext</function>", "C(<tool_call>\n<function=now>\ntext</function>)"},
       {"<tool_call><function=get_weather><parameter=city>Ro</para", "0:get_weather({\"city\": \"Ro)!C(</para)",
        "C(<tool_call><function=get_weather><parameter=city>Ro</para)"},
       {"<tool_call><function=get_weather><parameter=city>Ro</parameter> and <tool_call><function=now></function>",
        "0:get_weather({\"city\": \"Ro\")!C( and )1:now({}).",
        "C(<tool_call><function=get_weather><parameter=city>Ro</parameter> and )0:now({})."},
       {"<tool_call><function=get_weather><parameter=>1</parameter></function>",
        "0:get_weather!C(>1</parameter></function>)",
        "C(<tool_call><function=get_weather><parameter=>1</parameter></function>)"}});
}

TEST(OutputParser, ValuesHaveTheTypesOfTheSchema) {
  for (const auto& [key, value, json] :
       std::vector<std::array<const char*, 3>>{{"days", " 3 ", "3"},
                                               {"days", "three", "\"three\""},
                                               {"days", "007", "\"007\""},
                                               {"exact", "True", "true"},
                                               {"exact", "maybe", "\"maybe\""},
                                               {"exact", "1", "\"1\""},
                                               {"place", "{\"a\": [1, \"x\"]}", "{\"a\": [1, \"x\"]}"},
                                               {"place", "{'a': 1}", "\"{'a': 1}\""},
                                               {"hours", "[1,\n 2]", "[1,\n 2]"},
                                               {"hours", "{}", "\"{}\""},
                                               {"city", "3", "\"3\""},
                                               {"city", "null", "\"null\""},
                                               {"unit", "null", "null"},
                                               {"unit", "3", "\"3\""},
                                               {"limit", "2.5e1", "2.5e1"},
                                               {"limit", "None", "null"},
                                               {"mode", "fast", "\"fast\""},
                                               {"mode", "3", "3"},
                                               {"any", "{}", "\"{}\""},
                                               {"other", "[1]", "\"[1]\""}}) {
    SCOPED_TRACE(absl::StrCat(key, "=", value));
    EXPECT_EQ(Parse(Format("qwen3_coder"), Coder(key, value)),
              absl::StrCat("0:get_weather({\"", key, "\": ", json, "})."));
  }
  // GLM's values of unknown type are what JSON they are.
  EXPECT_EQ(JsonOfValue("[1]", ValueTypes(), false), "[1]");
  EXPECT_EQ(JsonOfValue("\"a\"", ValueTypes(), false), "\"a\"");
  EXPECT_EQ(JsonOfValue("a b", ValueTypes(), false), "\"a b\"");
}

// A long list of values was read for each parameter that refers to it.
TEST(OutputParser, TypesThatManyParametersReferToAreReadOnce) {
  const auto cpu_seconds = [] {
    timespec used = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  };
  const auto seconds = [&](int num_parameters) {
    nlohmann::ordered_json schema;
    schema["list"]["enum"] = std::vector<int>(200'000, 1);
    schema["list"]["anyOf"] = {{{"$ref", "#/tree"}}};
    schema["tree"]["anyOf"] = {{{"type", "null"}}, {{"$ref", "#/tree"}}};
    for (int i = 0; i < num_parameters; ++i) schema["properties"][absl::StrCat("p", i)]["$ref"] = "#/list";
    nlohmann::ordered_json tools;
    tools[0]["function"] = {{"name", "f"}, {"parameters", schema}};
    const double before = cpu_seconds();
    const ToolTypes types(tools);
    const double taken = cpu_seconds() - before;
    const ValueTypes last = types.TypesOf("f", absl::StrCat("p", num_parameters - 1));
    EXPECT_TRUE(last.Has(ValueTypes::kNumber) && last.Has(ValueTypes::kNull) && !last.Has(ValueTypes::kString));
    return taken;
  };
  const double one = seconds(1), many = seconds(200);
  EXPECT_LT(many, 20 * one);
}

TEST(OutputParser, Glm) {
  ExpectCases(
      Format("glm45", "glm45"),
      {{"\n<think>Hm.\n</think>\nOk.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>北京</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        "R(Hm.\n)C(\nOk.\n)0:get_weather({\"city\": \"北京\", \"days\": 2}).1:now({})."},
       // Without line feeds, as GLM-4.7 writes.
       {"<tool_call>add<arg_key>a</arg_key><arg_value>[1, 2]</arg_value><arg_key>b</arg_key><arg_value>x\n</arg_value>"
        "</tool_call>",
        "0:add({\"a\": [1, 2], \"b\": \"x\\n\"})."},
       {"<tool_call>now</tool_call>", "0:now({})."},
       {"<tool_call>add\n<arg_key>a</arg_key>\nb</tool_call>", "0:add!C(a</arg_key>\nb</tool_call>)",
        "C(<tool_call>add\n<arg_key>a</arg_key>\nb</tool_call>)"},
       {"<tool_call>two words</tool_call>", "C(<tool_call>two words</tool_call>)"}});
}

TEST(OutputParser, MiniMax) {
  ExpectCases(
      Format("minimax_m2", "minimax_m2"),
      {{"Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
        "name=\"city\">Oslo</parameter>\n"
        "<parameter name=\"exact\">true</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
        "R(Hm.\n)0:get_weather({\"city\": \"Oslo\", \"exact\": true}).1:now({})."},
       {"Hm</think><minimax:tool_call>x", "R(Hm)C(<minimax:tool_call>x)"}});
}

}  // namespace
}  // namespace switchyard::text::parse
