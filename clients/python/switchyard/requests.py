"""What a generation may be asked for, and the messages that say it. Values are the server's to check; names are checked here."""

from __future__ import annotations

import difflib
import json
from typing import Any, Iterable, Mapping, Optional, Sequence, Tuple, TypedDict, Union

from switchyard.errors import BadInput, bad_input
from switchyard.v1 import admin_pb2
from switchyard.v1 import inference_pb2 as pb

Message = Mapping[str, Any]  # {"role": "user", "content": "Hi"}, and what else the model's chat template reads


class GenerateOptions(TypedDict, total=False):
    """Options of Client.generate and Client.stream. What is unset has the model's own default, else the one named here."""

    model: str  # default: the served one
    request_id: str  # names the request in logs and for abort(); default: drawn by the server
    timeout: float  # seconds for the whole call; default: the client's

    # With messages:
    tools: Sequence[Mapping[str, Any]]  # their JSON schemas
    template_args: Mapping[str, Any]  # further variables of the chat template: {"enable_thinking": False}
    add_generation_prompt: bool  # default True
    # With a prompt of text:
    allow_special: bool  # special tokens' names become those tokens; default False
    add_special_tokens: bool  # the tokenizer's BOS and the like; default True

    max_tokens: int  # default: what the context leaves
    min_tokens: int  # no stop before; default 0
    temperature: float  # 0 = greedy; default 1
    top_p: float  # (0, 1]; default 1
    top_k: int  # 0 or -1 = all; default all
    min_p: float  # [0, 1]; default 0
    presence_penalty: float  # [-2, 2]; default 0
    frequency_penalty: float  # [-2, 2]; default 0
    repetition_penalty: float  # (0, 10]; default 1
    logit_bias: Mapping[int, float]  # token id -> added to its logit
    seed: int  # default: drawn by the server and returned
    n: int  # choices; default 1
    stop: Union[str, Sequence[str]]  # texts that end the output, which does not contain them
    stop_token_ids: Sequence[int]  # besides the model's own end-of-sequence tokens
    ignore_eos: bool  # default False

    # What the output must be, at most one of:
    json_schema: Union[str, Mapping[str, Any]]  # a JSON value that is valid under it
    json_object: bool  # any JSON object
    regex: str  # a text that it matches as a whole
    choice: Sequence[str]  # one of these texts
    grammar: str  # a text of the rule `root` of this EBNF grammar

    logprobs: int  # of each output token: 0 its own, k also the k most likely
    prompt_logprobs: int  # the same for the prompt
    skip_special_tokens: bool  # leave them out of the output's text; default True
    return_expert_paths: bool  # the experts of each token, in every MoE layer; default False


class TokenizeOptions(TypedDict, total=False):
    """Options of Client.tokenize."""

    tools: Sequence[Mapping[str, Any]]  # with messages, as template_args and add_generation_prompt
    template_args: Mapping[str, Any]
    add_generation_prompt: bool
    add_special_tokens: bool  # default: True for text, False for messages, as the template writes them
    allow_special: bool  # default: False for text, True for messages


_SAMPLING = frozenset(("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed"))
_CONSTRAINTS = ("json_schema", "json_object", "regex", "choice", "grammar")
_OF_MESSAGES = ("tools", "template_args", "add_generation_prompt")
_PLAIN = frozenset(("model", "request_id", "allow_special", "add_special_tokens", "max_tokens", "min_tokens", "n", "ignore_eos", "logprobs",
                    "prompt_logprobs", "skip_special_tokens", "return_expert_paths"))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _chat_message(item: Message, out: pb.ChatMessage) -> None:
    if not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
        raise bad_input(f'messages: each must be like {{"role": "user", "content": "Hi"}}, one is {item!r:.80}')
    out.role = item["role"]
    extra = {key: value for key, value in item.items() if key != "role"}
    if isinstance(extra.get("content"), str):
        out.content = extra.pop("content")
    if extra:
        out.extra_json = _dump(extra)


def _set_messages(out: pb.Messages, messages: Iterable[Message], options: Mapping[str, Any]) -> None:
    for item in messages:
        _chat_message(item, out.messages.add())
    out.SetInParent()
    out.tools.extend(tool if isinstance(tool, str) else _dump(tool) for tool in options.get("tools") or ())
    if options.get("add_generation_prompt") is not None:
        out.add_generation_prompt = options["add_generation_prompt"]
    if options.get("template_args") is not None:
        out.template_args_json = _dump(options["template_args"])


def _set_constraint(out: pb.GenerateRequest, name: str, value: Any) -> None:
    if out.HasField("constraint"):
        raise bad_input(f"at most one of {', '.join(_CONSTRAINTS)} may be given")
    if name == "json_object":
        if value:
            out.constraint.json_object = True
    elif name == "choice":
        out.constraint.choice.texts.extend(value)
    else:
        setattr(out.constraint, name, value if isinstance(value, str) else _dump(value))


def _set_option(out: pb.GenerateRequest, name: str, value: Any) -> None:
    if name in _SAMPLING:
        setattr(out.sampling, name, value)
    elif name in _PLAIN:
        setattr(out, name, value)
    elif name in _CONSTRAINTS:
        _set_constraint(out, name, value)
    elif name == "stop":
        out.stop.extend([value] if isinstance(value, str) else value)
    elif name == "stop_token_ids":
        out.stop_token_ids.extend(value)
    elif name == "logit_bias":
        for token, bias in value.items():
            out.sampling.logit_bias[token] = bias


def _check_names(function: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises TypeError for a name that no option has, as a call of a plain function would."""
    names = list(known)
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = "; stream() returns a stream" if name == "stream" else f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function}() got an unexpected option {name!r}{hint}")


def _check_prompt(options: Mapping[str, Any], **prompts: object) -> None:
    given = [name for name, value in prompts.items() if value is not None]
    if len(given) != 1:
        raise bad_input(f"exactly one of {', '.join(prompts)} is needed, {len(given)} given")
    for name in _OF_MESSAGES:
        if given != ["messages"] and options.get(name) is not None:
            raise bad_input(f"{name}: goes with messages only")


def generate_request(prompt: Optional[str], messages: Optional[Iterable[Message]], token_ids: Optional[Iterable[int]],
                     options: Mapping[str, Any]) -> pb.GenerateRequest:
    """BadInput: not one prompt, or a value of a wrong type. Options that are None count as unset."""
    _check_names("generate", options, GenerateOptions.__annotations__)
    _check_prompt(options, prompt=prompt, messages=messages, token_ids=token_ids)
    out = pb.GenerateRequest()
    if prompt is not None and not isinstance(prompt, str):
        raise bad_input(f"prompt: must be a text, is {type(prompt).__name__}; token ids go into token_ids, a conversation into messages")
    name = "prompt"
    try:
        if prompt is not None:
            out.text = prompt
        if token_ids is not None:
            name = "token_ids"
            out.token_ids.SetInParent()
            out.token_ids.ids.extend(token_ids)
        if messages is not None:
            name = "messages"
            _set_messages(out.messages, messages, options)
        for name, value in options.items():
            if value is not None:
                _set_option(out, name, value)
    except BadInput:
        raise
    except (TypeError, AttributeError, ValueError) as error:  # of protobuf or json
        raise bad_input(f"{name}: {error}") from None
    return out


def tokenize_request(text: Optional[str], messages: Optional[Iterable[Message]], model: str, options: Mapping[str, Any]) -> pb.TokenizeRequest:
    _check_names("tokenize", options, TokenizeOptions.__annotations__)
    _check_prompt(options, text=text, messages=messages)
    try:
        out = pb.TokenizeRequest(model=model, text=text)
        for name in ("add_special_tokens", "allow_special"):
            if options.get(name) is not None:
                setattr(out, name, options[name])
        if messages is not None:
            _set_messages(out.messages, messages, options)
    except BadInput:
        raise
    except (TypeError, ValueError) as error:
        raise bad_input(f"tokenize: {error}") from None
    return out


def detokenize_request(token_ids: Iterable[int], skip_special_tokens: bool, model: str) -> pb.DetokenizeRequest:
    try:
        return pb.DetokenizeRequest(model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens)
    except (TypeError, ValueError) as error:
        raise bad_input(f"token_ids: {error}") from None


def experts_request(layers: Iterable[int], why: Optional[Tuple[int, int]]) -> admin_pb2.GetExpertsRequest:
    return admin_pb2.GetExpertsRequest(layers=layers, why=None if why is None else admin_pb2.ExpertName(layer=why[0], expert=why[1]))
