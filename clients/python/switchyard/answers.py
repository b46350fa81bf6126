"""Answers of the model as plain values, and what joins a stream's messages to them. Unset is None."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from switchyard.errors import make_error
from switchyard.v1 import inference_pb2 as pb


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    text: str  # bytes that are only a part of a character are U+FFFD; `bytes` are exact
    logprob: float
    rank: int  # 1 = the most likely
    bytes: bytes


@dataclass(frozen=True)
class PositionLogprobs:
    """The chosen token of a position, and the likeliest ones."""

    chosen: TokenLogprob
    top: Tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class ExpertPaths:
    """The experts that consecutive tokens were routed to, in every MoE layer."""

    first_position: int
    num_moe_layers: int
    top_k: int
    experts: bytes  # [rows, num_moe_layers, top_k] int16, little-endian, best first; -1 = dropped

    @property
    def num_rows(self) -> int:
        return len(self.experts) // (2 * self.num_moe_layers * self.top_k)

    def at(self, row: int, layer: int) -> Tuple[int, ...]:
        """The experts of a row (position first_position + row) in a MoE layer."""
        if not (0 <= row < self.num_rows and 0 <= layer < self.num_moe_layers):
            raise IndexError(f"row {row}, layer {layer} of {self.num_rows} rows, {self.num_moe_layers} layers")
        return struct.unpack_from(f"<{self.top_k}h", self.experts, 2 * self.top_k * (row * self.num_moe_layers + layer))


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens that came from the prefix cache


@dataclass(frozen=True)
class Timings:
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class Finish:
    """How a choice ended."""

    reason: str  # "stop", "length" or "abort"
    usage: Usage
    timings: Timings
    stop_token_id: Optional[int] = None
    stop_string: Optional[str] = None


@dataclass(frozen=True)
class Chunk:
    """A piece of one choice, as it was made."""

    choice: int
    text: str  # whole characters only, so it may be empty or cover several tokens
    token_ids: Tuple[int, ...]
    index: int  # of the first of token_ids in this choice's output
    logprobs: Tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: Tuple[PositionLogprobs, ...] = ()
    expert_paths: Optional[ExpertPaths] = None
    finish: Optional[Finish] = None  # in the last chunk of the choice


@dataclass(frozen=True)
class Choice:
    text: str
    token_ids: Tuple[int, ...]
    logprobs: Tuple[PositionLogprobs, ...]
    expert_paths: Optional[ExpertPaths]
    finish: Optional[Finish]  # None: the stream was cancelled before the choice ended


@dataclass(frozen=True)
class Completion:
    """What a request made. Attributes from `text` on are those of the first choice."""

    request_id: str
    model: str
    seed: int  # with it, the same request gives the same text
    choices: Tuple[Choice, ...]
    prompt_logprobs: Tuple[PositionLogprobs, ...]  # from the prompt's second token on

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> Tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> Tuple[PositionLogprobs, ...]:
        return self.choices[0].logprobs

    @property
    def expert_paths(self) -> Optional[ExpertPaths]:
        return self.choices[0].expert_paths

    @property
    def finish_reason(self) -> Optional[str]:
        """ "stop", "length" or "abort"; None: the stream was cancelled before."""
        finish = self.choices[0].finish
        return finish.reason if finish else None

    @property
    def usage(self) -> Optional[Usage]:
        finish = self.choices[0].finish
        return finish.usage if finish else None

    @property
    def timings(self) -> Optional[Timings]:
        finish = self.choices[0].finish
        return finish.timings if finish else None


@dataclass(frozen=True)
class Tokens:
    token_ids: Tuple[int, ...]
    tokens: Tuple[str, ...]  # as the vocabulary spells them
    rendered_text: str  # messages as the chat template rendered them


def _token(message: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(message.token_id, message.text, message.logprob, message.rank, message.bytes)


def _position(message: pb.PositionLogprobs) -> PositionLogprobs:
    return PositionLogprobs(_token(message.chosen), tuple(map(_token, message.top)))


def _finish(message: pb.Finish) -> Finish:
    usage, timings = message.usage, message.timings
    return Finish(
        reason=pb.FinishReason.Name(message.reason).replace("FINISH_REASON_", "").lower(),
        usage=Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        timings=Timings(timings.queue_seconds, timings.prefill_seconds, timings.decode_seconds),
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        stop_string=message.stop_string if message.HasField("stop_string") else None)


def _paths(message: pb.ExpertPaths) -> ExpertPaths:
    return ExpertPaths(message.first_position, message.num_moe_layers, message.top_k, message.experts)


def chunk_of(message: pb.GenerateResponse) -> Chunk:
    return Chunk(
        choice=message.choice, text=message.text, token_ids=tuple(message.token_ids), index=message.index,
        logprobs=tuple(map(_position, message.logprobs)), prompt_logprobs=tuple(map(_position, message.prompt_logprobs)),
        expert_paths=_paths(message.expert_paths) if message.HasField("expert_paths") else None,
        finish=_finish(message.finish) if message.HasField("finish") else None)


@dataclass
class _OpenChoice:
    texts: List[str] = field(default_factory=list)
    token_ids: List[int] = field(default_factory=list)
    logprobs: List[PositionLogprobs] = field(default_factory=list)
    expert_paths: Optional[ExpertPaths] = None
    finish: Optional[Finish] = None

    def add(self, chunk: Chunk) -> None:
        if self.finish is not None:
            raise bad_answer(f"choice {chunk.choice} goes on after its end")
        if chunk.token_ids and chunk.index != len(self.token_ids):
            raise bad_answer(f"choice {chunk.choice}: token {chunk.index} came, {len(self.token_ids)} is next")
        self.texts.append(chunk.text)
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.finish = chunk.finish
        if chunk.expert_paths is not None:
            self._add_paths(chunk.expert_paths)

    def _add_paths(self, paths: ExpertPaths) -> None:
        old = self.expert_paths
        if old is None:
            self.expert_paths = paths
            return
        if paths.first_position != old.first_position + old.num_rows:
            raise bad_answer(f"expert paths of position {paths.first_position} came, {old.first_position + old.num_rows} is next")
        self.expert_paths = ExpertPaths(old.first_position, old.num_moe_layers, old.top_k, old.experts + paths.experts)


class Answer:
    """Joins the messages of one Generate call. Raises ServerFault (BAD_ANSWER) where they contradict each other."""

    def __init__(self, num_choices: int) -> None:
        self.request_id, self.model, self.seed = "", "", 0
        self._choices: Dict[int, _OpenChoice] = {i: _OpenChoice() for i in range(max(num_choices, 1))}
        self._prompt_logprobs: List[PositionLogprobs] = []

    def add(self, message: pb.GenerateResponse) -> Chunk:
        chunk = chunk_of(message)
        if chunk.choice not in self._choices:
            raise bad_answer(f"the server sent choice {chunk.choice} of {len(self._choices)}")
        if message.request_id:
            self.request_id, self.model, self.seed = message.request_id, message.model, message.seed
        self._choices[chunk.choice].add(chunk)
        self._prompt_logprobs += chunk.prompt_logprobs
        return chunk

    def check_complete(self) -> None:
        for i, choice in self._choices.items():
            if choice.finish is None:
                raise bad_answer(f"the stream ended before choice {i} did")

    def completion(self) -> Completion:
        """All that came so far."""
        return Completion(
            self.request_id, self.model, self.seed,
            tuple(Choice("".join(c.texts), tuple(c.token_ids), tuple(c.logprobs), c.expert_paths, c.finish) for c in self._choices.values()),
            tuple(self._prompt_logprobs))


def bad_answer(message: str) -> Exception:
    return make_error(message, code="DATA_LOSS", reason="BAD_ANSWER")
