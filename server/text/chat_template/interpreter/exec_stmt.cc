// Statements: output, assignments, blocks and macros (the bodies of call blocks are macros without a name).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/interpreter.h"

namespace switchyard::jinja {
namespace {

class MacroObject : public Object {
 public:
  MacroObject(Interpreter* interpreter, const ast::Macro* macro, Scope* closure)
      : interpreter_(*interpreter), macro_(*macro), closure_(closure) {}
  std::string TypeName() const override { return "Macro"; }
  std::string Repr() const override { return absl::StrCat("<Macro '", macro_.name, "'>"); }
  bool IsCallable() const override { return true; }
  absl::StatusOr<Value> Call(Runtime&, Args& args) override { return interpreter_.CallMacro(macro_, closure_, args); }
  absl::StatusOr<std::optional<Value>> GetAttribute(Runtime&, absl::string_view name) override {
    return name == "name" ? std::optional<Value>(Value::String(macro_.name)) : std::nullopt;
  }

 private:
  Interpreter& interpreter_;
  const ast::Macro& macro_;
  Scope* const closure_;
};

// Takes the named argument out of the list.
std::optional<Value> TakeNamed(Args* args, absl::string_view name) {
  const auto it = std::find_if(args->named.begin(), args->named.end(), [&](const auto& n) { return n.first == name; });
  if (it == args->named.end()) return std::nullopt;
  Value value = it->second;
  args->named.erase(it);
  return value;
}

// Binds the arguments beyond the parameters to varargs and kwargs, if the macro uses them.
absl::Status BindRest(Runtime& runtime, const ast::Macro& macro, Args* args, Scope* scope) {
  const size_t num_parameters = macro.parameters.size();
  if (macro.uses_caller && std::count(macro.parameters.begin(), macro.parameters.end(), "caller") == 0) {
    const std::optional<Value> caller = TakeNamed(args, "caller");
    scope->names["caller"] = caller.has_value() ? *caller : Value::Undefined("no caller defined");
  }
  if (macro.uses_kwargs) {
    Dict rest;
    for (const auto& [name, value] : args->named) (void)rest.Set(Value::String(name), value);  // strings always hash
    ASSIGN_OR_RETURN(scope->names["kwargs"], runtime.NewDict(std::move(rest)));
  } else if (!args->named.empty()) {
    return Error("macro '", macro.name, "' takes no keyword argument '", args->named.front().first, "'");
  }
  if (macro.uses_varargs) {
    const size_t used = std::min(num_parameters, args->positional.size());
    std::vector<Value> rest(args->positional.begin() + static_cast<ptrdiff_t>(used), args->positional.end());
    ASSIGN_OR_RETURN(scope->names["varargs"], runtime.NewTuple(std::move(rest)));
  } else if (args->positional.size() > num_parameters) {
    return Error("macro '", macro.name, "' takes not more than ", num_parameters, " argument(s)");
  }
  return absl::OkStatus();
}

}  // namespace

Interpreter::~Interpreter() {
  // Pinned scopes may hold each other as parents; dropping their names first leaves chains only.
  for (const auto& scope : pinned_) scope->names.clear();
}

absl::StatusOr<std::string> Interpreter::Render(const ast::Block& block) {
  std::string out;
  out_ = output_ = &out;
  RETURN_IF_ERROR(Exec(block));
  return out;
}

absl::StatusOr<std::shared_ptr<Scope>> Interpreter::NewScope(std::shared_ptr<Scope> parent) {
  RETURN_IF_ERROR(runtime_.Allocate(sizeof(Scope)));
  auto scope = std::make_shared<Scope>();
  scope->parent = std::move(parent);
  return scope;
}

Scope* Interpreter::Pin(std::shared_ptr<Scope> scope) {
  Scope* plain = scope.get();
  if (pinned_.empty() || pinned_.back().get() != plain) pinned_.push_back(std::move(scope));
  return plain;
}

absl::Status Interpreter::Write(absl::string_view text) {
  RETURN_IF_ERROR(runtime_.StepsForBytes(text.size()));
  out_->append(text.data(), text.size());
  if (out_->size() <= runtime_.limits().max_output_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the text is longer than the limit of ", runtime_.limits().max_output_bytes, " bytes"));
}

absl::StatusOr<Value> Interpreter::Capture(const ast::Block& block, std::shared_ptr<Scope> scope) {
  const Entered entered(this, std::move(scope));
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  const absl::Status status = Exec(block);
  out_ = outer;
  flow_ = Flow::kNext;  // a break inside only ends the capture
  RETURN_IF_ERROR(status);
  return runtime_.NewString(std::move(text));
}

absl::Status Interpreter::WriteValue(const Value& value) {
  if (value.IsString()) return Write(value.AsString());
  ASSIGN_OR_RETURN(const std::string text, Str(runtime_, value));
  return Write(text);
}

absl::Status Interpreter::Exec(const ast::Block& block) {
  const Runtime::Depth depth(&runtime_);
  if (!depth.ok()) return runtime_.TooDeep();
  for (const ast::Stmt& stmt : block) {
    RETURN_IF_ERROR(runtime_.Steps());
    runtime_.line = stmt.line;
    RETURN_IF_ERROR(std::visit([this](const auto& node) { return ExecNode(node); }, stmt.node));
    if (flow_ != Flow::kNext) break;
  }
  return absl::OkStatus();
}

absl::Status Interpreter::ExecNode(const ast::Output& node) {
  ASSIGN_OR_RETURN(const Value value, Eval(*node.value));
  return WriteValue(value);
}

absl::Status Interpreter::ExecNode(const ast::If& node) {
  for (const auto& [condition, body] : node.branches) {
    ASSIGN_OR_RETURN(const Value value, Eval(*condition));
    if (value.Truth()) return Exec(body);
  }
  return Exec(node.otherwise);
}

absl::Status Interpreter::Assign(const ast::Target& target, const Value& value) {
  if (target.is_tuple) {
    ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime_, value));
    if (items->items.size() != target.items.size()) {
      return Error("cannot unpack ", items->items.size(), " values into ", target.items.size(), " names");
    }
    for (size_t i = 0; i < target.items.size(); ++i) RETURN_IF_ERROR(Assign(target.items[i], items->items[i]));
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    RETURN_IF_ERROR(runtime_.Allocate(target.name.size() + sizeof(Value)));
    scope_->names.insert_or_assign(target.name, value);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Value object, EvalNode(ast::Name{target.name}));
  auto* space = dynamic_cast<Namespace*>(object.object());
  if (space == nullptr) return Error("cannot assign an attribute of '", target.name, "': it is no namespace");
  if (target.attribute[0] == '_') {
    return Error("a namespace cannot have the attribute '", target.attribute, "': it begins with an underscore");
  }
  RETURN_IF_ERROR(runtime_.Allocate(target.attribute.size() + sizeof(Value)));
  if (!space->Set(target.attribute, value)) return Error("the attribute's name cannot be hashed");
  return absl::OkStatus();
}

absl::Status Interpreter::ExecNode(const ast::Set& node) {
  ASSIGN_OR_RETURN(const Value value, Eval(*node.value));
  return Assign(node.target, value);
}

absl::Status Interpreter::ExecNode(const ast::CapturingBlock& node) {
  ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(scope_));
  ASSIGN_OR_RETURN(Value text, Capture(node.body, std::move(scope)));
  if (node.filter != nullptr) {
    ASSIGN_OR_RETURN(text, EvalFilter(std::get<ast::Filter>(node.filter->node), &text));
  }
  return node.target.has_value() ? Assign(*node.target, text) : WriteValue(text);
}

absl::Status Interpreter::ExecNode(const ast::With& node) {
  std::vector<Value> values;  // all evaluated in the outer scope
  for (const auto& [target, expr] : node.bindings) RETURN_IF_ERROR(AppendTo(Eval(*expr), &values));
  ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(scope_));
  const Entered entered(this, std::move(scope));
  for (size_t i = 0; i < values.size(); ++i) RETURN_IF_ERROR(Assign(node.bindings[i].first, values[i]));
  return Exec(node.body);
}

absl::Status Interpreter::ExecNode(const ast::Generation& node) {
  ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(scope_));
  const Entered entered(this, std::move(scope));
  const size_t begin = out_->size();
  RETURN_IF_ERROR(Exec(node.body));
  if (out_ == output_) {
    generated_.push_back({begin, out_->size()});
  } else {
    captured_generation_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Interpreter::NewMacro(const ast::Macro& macro) {
  RETURN_IF_ERROR(runtime_.Allocate(sizeof(Scope)));
  ASSIGN_OR_RETURN(MacroObject * object, runtime_.New<MacroObject>(this, &macro, Pin(scope_)));
  return Value::Of(object);
}

absl::StatusOr<Value> Interpreter::CallMacro(const ast::Macro& macro, Scope* closure, const Args& passed) {
  const Runtime::Depth depth(&runtime_);
  if (!depth.ok()) return runtime_.TooDeep();
  ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(Pinned(closure)));
  const Entered entered(this, scope);
  Args args = passed;
  const auto& names = macro.parameters;
  const size_t first_default = names.size() - macro.defaults.size();
  for (size_t i = 0; i < names.size(); ++i) {
    std::optional<Value> value;
    if (i < args.positional.size()) {
      value = args.positional[i];
    } else {
      RETURN_IF_ERROR(runtime_.Steps(static_cast<int64_t>(args.named.size())));
      value = TakeNamed(&args, names[i]);
    }
    if (!value.has_value() && i >= first_default) {
      ASSIGN_OR_RETURN(value, Eval(*macro.defaults[i - first_default]));
    }
    scope->names[names[i]] = value.has_value()
                                 ? *std::move(value)
                                 : Value::Undefined(absl::StrCat("parameter '", names[i], "' was not provided"));
  }
  RETURN_IF_ERROR(BindRest(runtime_, macro, &args, scope.get()));
  return Capture(macro.body, scope);
}

absl::Status Interpreter::ExecNode(const ast::Macro& node) {
  ASSIGN_OR_RETURN(Value macro, NewMacro(node));
  Define(node.name, std::move(macro));
  return absl::OkStatus();
}

absl::Status Interpreter::ExecNode(const ast::CallBlock& node) {
  ASSIGN_OR_RETURN(const Value caller, NewMacro(node.caller));
  runtime_.line = node.call->line;
  ASSIGN_OR_RETURN(const Value text, EvalCall(std::get<ast::Call>(node.call->node), &caller));
  return WriteValue(text);
}

}  // namespace switchyard::jinja
