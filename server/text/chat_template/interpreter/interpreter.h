// Interpreter of a parsed template: walks the tree and writes the text.
//
// One Interpreter renders once.  Scopes are Jinja's: `for`, macros, `with`, block `set`, `filter`, `call` and
// `generation` open one, `if` does not.  Assignments end with their scope, except on a namespace.  Expressions are in
// eval_expr.cc, statements and macros in exec_stmt.cc, loops in exec_loop.cc, functions in globals.cc.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/text/chat_template/chat_template.h"
#include "server/text/chat_template/interpreter/runtime.h"
#include "server/text/chat_template/parser/ast.h"

namespace switchyard::jinja {

// Names and values, shared by inner scopes.  A macro keeps a plain pointer to the scope of its definition, which the
// Interpreter pins, so shared pointers form no cycle.
struct Scope : std::enable_shared_from_this<Scope> {
  std::shared_ptr<Scope> parent;
  absl::flat_hash_map<std::string, Value> names;
};

class Interpreter {
 public:
  // Borrows the runtime and, for Render, the template.
  explicit Interpreter(Runtime* runtime) : runtime_(*runtime), scope_(std::make_shared<Scope>()) {}
  ~Interpreter();

  void Define(std::string name, Value value) { scope_->names.insert_or_assign(std::move(name), std::move(value)); }
  // The functions that every template can call: namespace, range, dict, joiner, cycler, raise_exception, strftime_now.
  absl::Status DefineGlobals();
  absl::StatusOr<std::string> Render(const ast::Block& block);
  // The spans of Render's text that `generation` blocks wrote, in order.  Empty if one of them wrote into a captured
  // block (a macro, a block `set`), whose place in the output is unknown.
  std::vector<text::TextSpan> TakeGenerated() {
    return captured_generation_ ? std::vector<text::TextSpan>() : std::move(generated_);
  }

  absl::StatusOr<Value> CallMacro(const ast::Macro& macro, Scope* closure, const Args& args);
  absl::Status RunLoop(const ast::For& loop, const Value& items, int depth0);
  // Renders a recursive loop again over `items`, in the scope around the loop.
  absl::StatusOr<Value> Recurse(const ast::For& loop, Scope* scope, const Value& items, int depth0);
  // Whether the loop's condition holds for this item, evaluated in the scope around the loop.
  absl::StatusOr<bool> Accepts(const ast::For& loop, Scope* scope, const Value& item);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using ValueOr = absl::StatusOr<Value>;

  // Enters a scope for the lifetime of this object.
  class Entered {
   public:
    Entered(Interpreter* owner, std::shared_ptr<Scope> scope)
        : owner_(owner), outer_(std::exchange(owner->scope_, std::move(scope))) {}
    ~Entered() { owner_->scope_ = std::move(outer_); }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    Interpreter* owner_;
    std::shared_ptr<Scope> outer_;
  };
  absl::StatusOr<std::shared_ptr<Scope>> NewScope(std::shared_ptr<Scope> parent);
  // Keeps a scope alive for the render, so that plain pointers to it stay valid.
  Scope* Pin(std::shared_ptr<Scope> scope);
  static std::shared_ptr<Scope> Pinned(Scope* scope) { return scope->shared_from_this(); }

  // Expressions.
  ValueOr Eval(const ast::Expr& expr);
  ValueOr EvalNode(const ast::Constant& node) { return node.value; }
  ValueOr EvalNode(const ast::Name& node);
  ValueOr EvalNode(const ast::ListLiteral& node);
  ValueOr EvalNode(const ast::DictLiteral& node);
  ValueOr EvalNode(const ast::Unary& node);
  ValueOr EvalNode(const ast::Binary& node);
  ValueOr EvalNode(const ast::Concat& node);
  ValueOr EvalNode(const ast::Compare& node);
  ValueOr EvalNode(const ast::Conditional& node);
  ValueOr EvalNode(const ast::Attribute& node);
  ValueOr EvalNode(const ast::Subscript& node);
  ValueOr EvalNode(const ast::Slice& node);
  ValueOr EvalNode(const ast::Call& node) { return EvalCall(node, nullptr); }
  ValueOr EvalNode(const ast::Filter& node) { return EvalFilter(node, nullptr); }
  ValueOr EvalNode(const ast::Test& node);
  // `caller`: a call block's additional argument, or nullptr.
  ValueOr EvalCall(const ast::Call& node, const Value* caller);
  // `block`: the text that a filter without an input is applied to.
  ValueOr EvalFilter(const ast::Filter& node, const Value* block);
  absl::StatusOr<Args> EvalArguments(const ast::Arguments& arguments);
  absl::Status AddStarArguments(const ast::Arguments& arguments, Args* args);

  // Statements.  If flow_ is not kNext afterwards, the enclosing blocks up to the loop end, too.
  absl::Status Exec(const ast::Block& block);
  absl::Status ExecNode(const ast::Text& node) { return Write(node.text); }
  absl::Status ExecNode(const ast::Output& node);
  absl::Status ExecNode(const ast::If& node);
  absl::Status ExecNode(const ast::For& node);
  absl::Status ExecNode(const ast::Set& node);
  absl::Status ExecNode(const ast::CapturingBlock& node);
  absl::Status ExecNode(const ast::With& node);
  absl::Status ExecNode(const ast::Macro& node);
  absl::Status ExecNode(const ast::CallBlock& node);
  absl::Status ExecNode(const ast::Generation& node);
  absl::Status ExecNode(const ast::Break&) { return Leave(Flow::kBreak); }
  absl::Status ExecNode(const ast::Continue&) { return Leave(Flow::kContinue); }
  absl::Status Leave(Flow flow) {
    flow_ = flow;
    return absl::OkStatus();
  }
  absl::Status Write(absl::string_view text);
  absl::Status WriteValue(const Value& value);
  absl::Status Assign(const ast::Target& target, const Value& value);
  // Renders the block in its own scope; returns the text.
  ValueOr Capture(const ast::Block& block, std::shared_ptr<Scope> scope);
  ValueOr NewMacro(const ast::Macro& macro);

  Runtime& runtime_;
  Flow flow_ = Flow::kNext;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;     // where text goes: the output or a captured block
  std::string* output_ = nullptr;  // the output
  std::vector<text::TextSpan> generated_;
  bool captured_generation_ = false;
  std::vector<std::shared_ptr<Scope>> pinned_;
};

}  // namespace switchyard::jinja
