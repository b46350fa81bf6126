// Macros, and the bodies of call blocks, which are macros without a name.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
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

// What is left after the parameters goes to varargs and kwargs, if the macro speaks of them.
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
