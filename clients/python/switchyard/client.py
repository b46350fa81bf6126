"""The client for programs without asyncio; aio.py has the same for those with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, Iterable, Iterator, List, Mapping, Optional, Tuple, Type, TypeVar

import grpc

from switchyard import jobs as job_values
from switchyard import requests
from switchyard.answers import Answer, Chunk, Completion, Tokens
from switchyard.connection import CHANNEL_OPTIONS, Settings, StrPath, make_settings
from switchyard.errors import DeadlineExceeded, Error, ModelLoading, Unavailable, of_call
from switchyard.jobs import Job, Spec
from switchyard.v1 import admin_pb2, inference_pb2, training_pb2
from switchyard.v1.admin_pb2_grpc import AdminServiceStub
from switchyard.v1.inference_pb2_grpc import InferenceServiceStub
from switchyard.v1.training_pb2_grpc import TrainingServiceStub

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

Request = TypeVar("Request")
Response = TypeVar("Response")
POLL_SECONDS = 0.1  # between two questions whether the server is ready


class _Connection:
    """A channel with what each call on it has: key, time limit, errors of ours."""

    def __init__(self, address: str, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.channel = (grpc.insecure_channel(address, CHANNEL_OPTIONS) if settings.credentials is None
                        else grpc.secure_channel(address, settings.credentials, CHANNEL_OPTIONS))

    def call(self, method: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request, timeout: Optional[float] = None) -> Response:
        try:
            return method(request, timeout=timeout or self.settings.call_timeout, metadata=self.settings.metadata)
        except grpc.RpcError as error:
            raise of_call(error, self.address) from None

    def start(self, method: grpc.UnaryStreamMultiCallable[Request, Response], request: Request, timeout: float) -> Messages[Response]:
        return Messages(method(request, timeout=timeout, metadata=self.settings.metadata), self.address)


class Messages(Generic[Response]):
    """The messages of a call under way. Ends, without an error, after cancel()."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self.is_cancelled = False

    def __iter__(self) -> Iterator[Response]:
        return self

    def __next__(self) -> Response:
        try:
            message: Response = next(self._call)
            return message
        except grpc.RpcError as error:
            if self.is_cancelled and error.code() is grpc.StatusCode.CANCELLED:
                raise StopIteration from None
            raise of_call(error, self._address) from None

    def cancel(self) -> None:
        self.is_cancelled = True
        self._call.cancel()


class _Cancellable:
    """What iterators over a call have in common. Used as a context manager, a stream that is left early is cancelled."""

    def __init__(self, messages: Messages[Any]) -> None:
        self._messages = messages

    def cancel(self) -> None:
        """Stops the work at the server. From any thread; iteration then ends. Without effect after the end."""
        self._messages.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.cancel()


class Stream(_Cancellable):
    """A generation under way: an iterator over its chunks, for one thread."""

    def __init__(self, messages: Messages[inference_pb2.GenerateResponse], num_choices: int) -> None:
        super().__init__(messages)
        self._answer = Answer(num_choices)

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            return self._answer.add(next(self._messages))
        except StopIteration:
            if not self._messages.is_cancelled:
                self._answer.check_complete()
            raise
        except Error:
            self.cancel()
            raise

    @property
    def request_id(self) -> str:
        """Known once a chunk has come."""
        return self._answer.request_id

    @property
    def completion(self) -> Completion:
        """What has come so far, as one answer."""
        return self._answer.completion()

    def result(self) -> Completion:
        """Waits for the end; returns the whole answer."""
        for _ in self:
            pass
        return self.completion


class JobWatch(_Cancellable):
    """The states of a job: now, and after every change. Ends when the job is over."""

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        return Job(next(self._messages).job)


class Jobs:
    """Training jobs, as Client.jobs. Calls go to the server's port of administration."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._stub = TrainingServiceStub(connection.channel)

    def submit(self, spec: Spec, request_id: str = "") -> Job:
        """Returns when the job is in the journal. The same request_id and spec again are the same job."""
        return Job(self._connection.call(self._stub.SubmitJob, job_values.submit_request(spec, request_id)).job)

    def fork(self, id: str, changes: Optional[Spec] = None, step: Optional[int] = None, skip_batches: int = 0, request_id: str = "") -> Job:
        """A new job that goes on from a checkpoint of this one (`step`; None: the newest), in the same place of its data but
        for `skip_batches`, with the fields of `changes` instead of the parent's."""
        return Job(self._connection.call(self._stub.ForkJob, job_values.fork_request(id, changes, step, skip_batches, request_id)).job)

    def get(self, id: str) -> Job:
        return Job(self._connection.call(self._stub.GetJob, training_pb2.GetJobRequest(id=id)).job)

    def list(self, states: Iterable[str] = (), labels: Optional[Mapping[str, str]] = None) -> List[Job]:
        """All jobs, newest first, or those in one of these states that have all of these labels."""
        out: List[Job] = []
        states, page_token = tuple(states), ""
        while True:
            page = self._connection.call(self._stub.ListJobs, job_values.list_request(states, labels, page_token))
            out += map(Job, page.jobs)
            page_token = page.next_page_token
            if not page_token:
                return out

    def watch(self, id: str, min_interval: float = 0) -> JobWatch:
        """At most one state in `min_interval` seconds. Raises DeadlineExceeded after the client's watch_timeout: call it again."""
        settings = self._connection.settings
        return JobWatch(self._connection.start(self._stub.WatchJob, job_values.watch_request(id, min_interval), settings.watch_timeout))

    def pause(self, id: str) -> Job:
        """Answers at once; a running job then stops at a step with a checkpoint."""
        return Job(self._connection.call(self._stub.PauseJob, training_pb2.PauseJobRequest(id=id)).job)

    def resume(self, id: str, workers: Optional[int] = None) -> Job:
        """With another number of `workers`, if it is given."""
        return Job(self._connection.call(self._stub.ResumeJob, job_values.resume_request(id, workers)).job)

    def cancel(self, id: str) -> Job:
        """Answers at once; a running job then saves a checkpoint and stops."""
        return Job(self._connection.call(self._stub.CancelJob, training_pb2.CancelJobRequest(id=id)).job)

    def delete(self, id: str) -> int:
        """Deletes a job that is over, with its checkpoints and logs; returns the bytes that this has freed. Forks keep their own."""
        return self._connection.call(self._stub.DeleteJob, training_pb2.DeleteJobRequest(id=id)).freed_bytes


class Client:
    """A client of one server. Thread-safe. Connects with the first call; every call has a time limit, and none is tried again.

    address        HOST:PORT of the server's port of users
    admin_address  of its port of administration, for jobs, experts and plan; default: the port after `address`
    api_key        or api_key_file, which only its owner may use (mode 0600); default: the environment's SWITCHYARD_API_KEY
    tls            encrypted, checked by the system's authorities; tls_ca (PEM) names others; tls_cert and tls_key are this client's own
    timeout        seconds for a generation; call_timeout for other calls; watch_timeout for Jobs.watch

    Raises BadInput for a wrong argument, other Errors where calls fail (errors.py).
    """

    def __init__(self, address: str = "127.0.0.1:50051", *, admin_address: Optional[str] = None, api_key: Optional[str] = None,
                 api_key_file: Optional[StrPath] = None, tls: bool = False, tls_ca: Optional[StrPath] = None,
                 tls_cert: Optional[StrPath] = None, tls_key: Optional[StrPath] = None, timeout: float = 300, call_timeout: float = 30,
                 watch_timeout: float = 1800) -> None:
        self._settings = make_settings(
            address, admin_address=admin_address, api_key=api_key, api_key_file=api_key_file, tls=tls, tls_ca=tls_ca, tls_cert=tls_cert,
            tls_key=tls_key, timeout=timeout, call_timeout=call_timeout, watch_timeout=watch_timeout)
        self._users = _Connection(self._settings.address, self._settings)
        self._operators = _Connection(self._settings.admin_address, self._settings)
        self._inference = InferenceServiceStub(self._users.channel)
        self._admin = AdminServiceStub(self._operators.channel)
        self.jobs = Jobs(self._operators)

    def close(self) -> None:
        """Cancels what is under way."""
        self._users.channel.close()
        self._operators.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def stream(self, prompt: Optional[str] = None, *, messages: Optional[Iterable[requests.Message]] = None,
               token_ids: Optional[Iterable[int]] = None, **options: Unpack[requests.GenerateOptions]) -> Stream:
        """Starts a generation of a text, a conversation or token ids. requests.GenerateOptions lists the options."""
        request = requests.generate_request(prompt, messages, token_ids, options)
        timeout = options.get("timeout") or self._settings.timeout
        return Stream(self._users.start(self._inference.Generate, request, timeout), request.n)

    def generate(self, prompt: Optional[str] = None, *, messages: Optional[Iterable[requests.Message]] = None,
                 token_ids: Optional[Iterable[int]] = None, **options: Unpack[requests.GenerateOptions]) -> Completion:
        """The same, and waits for all of it."""
        with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            return stream.result()

    def abort(self, request_id: str) -> None:
        """Ends any request by its id: its stream ends with finish reason "abort"."""
        self._users.call(self._inference.Abort, inference_pb2.AbortRequest(request_id=request_id))

    def tokenize(self, text: Optional[str] = None, *, messages: Optional[Iterable[requests.Message]] = None, model: str = "",
                 **options: Unpack[requests.TokenizeOptions]) -> Tokens:
        response = self._users.call(self._inference.Tokenize, requests.tokenize_request(text, messages, model, options))
        return Tokens(tuple(response.token_ids), tuple(response.tokens), response.rendered_text)

    def detokenize(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True, model: str = "") -> str:
        request = requests.detokenize_request(token_ids, skip_special_tokens, model)
        return self._users.call(self._inference.Detokenize, request).text

    def model_info(self, model: str = "") -> inference_pb2.GetModelInfoResponse:
        return self._users.call(self._inference.GetModelInfo, inference_pb2.GetModelInfoRequest(model=model))

    def load(self) -> inference_pb2.GetLoadResponse:
        """How busy the server is, and whether it is ready."""
        return self._users.call(self._inference.GetLoad, inference_pb2.GetLoadRequest())

    def wait_ready(self, timeout: float = 60) -> None:
        """Waits until the model can answer, also for a server that is not there yet. DeadlineExceeded says what it waited for."""
        until = time.monotonic() + timeout
        while True:
            left = max(until - time.monotonic(), 0.001)
            try:
                load = self._users.call(self._inference.GetLoad, inference_pb2.GetLoadRequest(), min(left, self._settings.call_timeout))
                if load.ready:
                    return
                why = load.not_ready_reason
            except (Unavailable, ModelLoading, DeadlineExceeded) as error:
                why = error.message
            if time.monotonic() + POLL_SECONDS >= until:
                raise not_ready(self._settings.address, timeout, why)
            time.sleep(POLL_SECONDS)

    def experts(self, layers: Iterable[int] = (), why: Optional[Tuple[int, int]] = None) -> admin_pb2.GetExpertsResponse:
        """How often each expert was chosen lately, and where it is; `why` (layer, expert) asks for the reasons."""
        return self._operators.call(self._admin.GetExperts, requests.experts_request(layers, why))

    def plan(self) -> admin_pb2.GetPlanResponse:
        """What was expected and measured of the ways in which steps may run."""
        return self._operators.call(self._admin.GetPlan, admin_pb2.GetPlanRequest())


def not_ready(address: str, timeout: float, why: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"{address} is not ready after {timeout:g} s: {why}", code="DEADLINE_EXCEEDED", reason="DEADLINE")
