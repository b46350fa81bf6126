"""Errors of calls: a class for each kind, which `except` can name, with what the server says about it.

`code` is gRPC's, `reason` one of ErrorReason in proto/switchyard/v1/inference.proto, or UNREACHABLE, DEADLINE, CANCELLED, BAD_INPUT,
BAD_ANSWER of the client itself. Nothing is tried again by itself: `retry_after` says when another try makes sense.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple, Type

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]


class Error(Exception):
    """What went wrong in a call. `message` names what, where, limit and actual value."""

    def __init__(self, message: str, *, code: str, reason: str, metadata: Optional[Mapping[str, str]] = None,
                 retry_after: Optional[float] = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata: Mapping[str, str] = dict(metadata or {})
        self.retry_after = retry_after  # seconds; None: the server gave no advice

    def __str__(self) -> str:
        retry = f"; try again in {self.retry_after:g} s" if self.retry_after else ""
        return f"{self.message} [{self.code} {self.reason}]{retry}"

    def __reduce__(self) -> Tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.code, self.reason, dict(self.metadata), self.retry_after)

    @property
    def field(self) -> Optional[str]:
        """The request's field that is wrong."""
        return self.metadata.get("field")

    @property
    def limit(self) -> Optional[str]:
        return self.metadata.get("limit")

    @property
    def actual(self) -> Optional[str]:
        return self.metadata.get("actual")

    @property
    def request_id(self) -> Optional[str]:
        return self.metadata.get("requestId")

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later, or at another server."""
        return self.metadata.get("retryable") == "true" or self.code == "UNAVAILABLE"


def _rebuild(kind: Type[Error], message: str, code: str, reason: str, metadata: Mapping[str, str], retry_after: Optional[float]) -> Error:
    return kind(message, code=code, reason=reason, metadata=metadata, retry_after=retry_after)


class BadRequest(Error):
    """The request is wrong, and stays so."""


class BadField(BadRequest):
    """`field` has a value that it must not have."""


class BadInput(BadRequest, ValueError):
    """An argument of this client is wrong; no server was asked."""


class PromptTooLong(BadRequest):
    """Prompt and output do not fit into the model's context."""


class BadFile(BadRequest):
    """A file that a training job names is missing or unfit."""


class NotFound(Error):
    """No such model, request or job."""


class Exists(Error):
    """The request id is that of another request or job."""


class NotPossible(Error):
    """This server, its model or the job's state does not allow it (no tokenizer, no chat template, no training …)."""


class ModelLoading(NotPossible):
    """The server is not ready yet: Client.wait_ready waits for it."""


class NoKey(Error):
    """The server wants an API key that it knows."""


class WrongRole(Error):
    """The key's role may not make this call."""


class Exhausted(Error):
    """A limit of the server is reached."""


class QueueFull(Exhausted):
    """As many requests wait as may."""


class TooManyStreams(Exhausted):
    """The client has as many open requests as it may."""


class Quota(Exhausted):
    """The key's requests or tokens of a minute are used up."""


class DiskQuota(Exhausted):
    """The files of the key's training jobs are more than its disk_gib: `jobs.delete` frees those of one that has ended."""


class SlowReader(Exhausted):
    """The stream was not read, so the server ended it."""


class Unavailable(Error):
    """The server cannot answer now: another try, or another server, may."""


class Unreachable(Unavailable):
    """There is no connection to the server."""


class WorkerLost(Unavailable):
    """A worker of the group was lost."""


class DeadlineExceeded(Error, TimeoutError):
    """The call took longer than its timeout."""


class Cancelled(Error):
    """The call was cancelled, not by this client."""


class ServerFault(Error):
    """The server or the model failed."""


_OF_REASON: Mapping[str, Type[Error]] = {
    "BAD_REQUEST_BYTES": BadRequest, "BAD_FIELD": BadField, "PROMPT_TOO_LONG": PromptTooLong, "BAD_FILE": BadFile,
    "MODEL_NOT_FOUND": NotFound, "REQUEST_NOT_FOUND": NotFound, "JOB_NOT_FOUND": NotFound,
    "REQUEST_EXISTS": Exists, "JOB_EXISTS": Exists,
    "NO_TOKENIZER": NotPossible, "NO_CHAT_TEMPLATE": NotPossible, "NO_EXPERTS": NotPossible, "NO_PROFILE": NotPossible,
    "OTHER_WEIGHTS": NotPossible, "JOB_STATE": NotPossible, "NO_TRAINING": NotPossible, "TOO_FEW_WORKERS": NotPossible,
    "DISK_FULL": NotPossible, "DATASET_CHANGED": NotPossible, "CONSTRAINT_FAILED": NotPossible, "MODEL_LOADING": ModelLoading,
    "NO_KEY": NoKey, "WRONG_ROLE": WrongRole,
    "QUEUE_FULL": QueueFull, "TOO_MANY_STREAMS": TooManyStreams, "QUOTA": Quota, "DISK_QUOTA": DiskQuota,
    "SLOW_READER": SlowReader,
    "TEXT_LIMIT": Exhausted, "TOO_MANY_JOBS": Exhausted,
    "DRAINING": Unavailable, "WORKER_LOST": WorkerLost, "UNREACHABLE": Unreachable,
    "DEADLINE": DeadlineExceeded, "CANCELLED": Cancelled,
    "NUMERIC_ERROR": ServerFault, "ENGINE_ERROR": ServerFault, "KILLS_WORKERS": ServerFault, "BAD_ANSWER": ServerFault,
}
_OF_CODE: Mapping[str, Type[Error]] = {
    "INVALID_ARGUMENT": BadRequest, "OUT_OF_RANGE": BadRequest, "NOT_FOUND": NotFound, "ALREADY_EXISTS": Exists,
    "FAILED_PRECONDITION": NotPossible, "UNAUTHENTICATED": NoKey, "PERMISSION_DENIED": WrongRole, "RESOURCE_EXHAUSTED": Exhausted,
    "UNAVAILABLE": Unavailable, "DEADLINE_EXCEEDED": DeadlineExceeded, "CANCELLED": Cancelled,
}


def make_error(message: str, *, code: str, reason: str, metadata: Optional[Mapping[str, str]] = None,
               retry_after: Optional[float] = None) -> Error:
    """The error of the class for this reason, or else for this code."""
    kind = _OF_REASON.get(reason) or _OF_CODE.get(code, ServerFault)
    return kind(message, code=code, reason=reason, metadata=metadata, retry_after=retry_after)


def of_status(status: Any) -> Error:
    """The error that a google.rpc.Status is: of a call's details, or of a job."""
    code = _code_name(status.code)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    has_retry = False
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            has_retry = detail.Unpack(retry)
    retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9 if has_retry else None
    return make_error(status.message, code=code, reason=info.reason or code, metadata=info.metadata, retry_after=retry_after)


def of_call(error: Any, address: str) -> Error:
    """The error of a call that a grpc.RpcError ended. Without the server's details it is gRPC's own, and the message names the server."""
    code: str = error.code().name
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return of_status(status_pb2.Status.FromString(value))
    message: str = error.details() or f"{address} gave no reason"
    if code == "UNAVAILABLE":
        return make_error(f"cannot reach {address}: {message}", code=code, reason="UNREACHABLE")
    if code == "DEADLINE_EXCEEDED":
        return make_error(f"no answer from {address} within the timeout", code=code, reason="DEADLINE")
    return make_error(message, code=code, reason=code)


def bad_input(message: str) -> BadInput:
    return BadInput(message, code="INVALID_ARGUMENT", reason="BAD_INPUT")


def _code_name(number: int) -> str:
    for code in grpc.StatusCode:
        if code.value[0] == number:
            return str(code.name)
    return "UNKNOWN"
