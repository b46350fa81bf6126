// The tree of a parsed template: expressions and statements as plain structs, immutable after the parse and then safe
// to share between threads.  Heights are bounded by ChatTemplateLimits::max_nesting, so that walking it recursively is
// safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/text/chat_template/interpreter/value.h"

namespace switchyard::jinja::ast {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<Stmt>;

// The arguments of a call, filter or test.
struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;         // *args, or nullptr
  ExprPtr double_star;  // **kwargs, or nullptr
};

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kAnd, kOr };
enum class CompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };
enum class UnaryOp { kNot, kNegative, kPositive };

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExprPtr> items;
  bool is_tuple = false;
};
struct DictLiteral {
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};
struct Unary {
  UnaryOp op;
  ExprPtr operand;
};
struct Binary {
  BinaryOp op;
  ExprPtr left, right;
};
struct Concat {  // a ~ b ~ c
  std::vector<ExprPtr> parts;
};
struct Compare {  // a < b <= c
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct Conditional {
  ExprPtr condition, then, otherwise;  // otherwise may be nullptr
};
struct Attribute {
  ExprPtr object;
  std::string name;
};
struct Subscript {
  ExprPtr object, index;
};
struct Slice {  // bounds may be nullptr
  ExprPtr object, start, stop, step;
};
struct Call {
  ExprPtr callee;
  Arguments arguments;
};
struct Filter {
  ExprPtr input;  // nullptr: the block that the filter is applied to
  std::string name;
  Arguments arguments;
};
struct Test {
  ExprPtr input;
  std::string name;
  Arguments arguments;
};

using ExprNode = std::variant<Constant, Name, ListLiteral, DictLiteral, Unary, Binary, Concat, Compare, Conditional,
                              Attribute, Subscript, Slice, Call, Filter, Test>;

struct Expr {
  ExprNode node;
  int line = 0;
  int height = 1;
};

// The left side of an assignment: a name, ns.attribute, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;  // not empty: an attribute of the namespace `name`
  std::vector<Target> items;
  bool is_tuple = false;
};

// A macro, or the body of a call block.
struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Block body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Text {
  std::string text;
};
struct Output {
  ExprPtr value;
};
struct If {
  std::vector<std::pair<ExprPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExprPtr iterable, condition;  // condition may be nullptr
  bool recursive = false;
  Block body, otherwise;
};
struct Set {
  Target target;
  ExprPtr value;
};
struct CapturingBlock {          // {% set x %} and {% filter f %}
  std::optional<Target> target;  // nullopt: the text is written
  ExprPtr filter;                // may be nullptr
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExprPtr>> bindings;
  Block body;
};
struct CallBlock {
  ExprPtr call;
  Macro caller;
};
struct Generation {  // the assistant's text; renders as its body does
  Block body;
};
struct Break {};
struct Continue {};

using StmtNode =
    std::variant<Text, Output, If, For, Set, CapturingBlock, With, Macro, CallBlock, Generation, Break, Continue>;

struct Stmt {
  StmtNode node;
  int line = 0;
};

}  // namespace switchyard::jinja::ast
