"""The client for programs with asyncio. It is client.py's Client with `await`, whose text says what each method does."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, AsyncIterator, Generic, Iterable, List, Mapping, Optional, Tuple, Type, TypeVar, cast

import grpc
import grpc.aio

from switchyard import jobs as job_values
from switchyard import requests
from switchyard.answers import Answer, Chunk, Completion, Tokens
from switchyard.client import POLL_SECONDS, not_ready
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


class _Connection:
    """A channel with what each call on it has: key, time limit, errors of ours."""

    def __init__(self, address: str, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.channel = (grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) if settings.credentials is None
                        else grpc.aio.secure_channel(address, settings.credentials, CHANNEL_OPTIONS))
        # One class serves both kinds of channels; its types are those of the other.
        self.channel_of_stubs = cast(grpc.Channel, self.channel)

    async def call(self, method: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request,
                   timeout: Optional[float] = None) -> Response:
        try:
            response: Response = await cast(Any, method)(request, timeout=timeout or self.settings.call_timeout,
                                                         metadata=self.settings.metadata)
            return response
        except grpc.RpcError as error:
            raise of_call(error, self.address) from None

    def start(self, method: grpc.UnaryStreamMultiCallable[Request, Response], request: Request, timeout: float) -> Messages[Response]:
        return Messages(method(request, timeout=timeout, metadata=self.settings.metadata), self.address)


class Messages(Generic[Response]):
    """The messages of a call under way. Ends, without an error, after cancel()."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._messages = call.__aiter__()
        self._address = address
        self.is_cancelled = False

    def __aiter__(self) -> AsyncIterator[Response]:
        return self

    async def __anext__(self) -> Response:
        try:
            message: Response = await self._messages.__anext__()
            return message
        except grpc.RpcError as error:
            raise of_call(error, self._address) from None
        except asyncio.CancelledError:
            # Either of the call, by cancel(), or of the task that waits here.
            task = asyncio.current_task()
            if self.is_cancelled and not (task is not None and hasattr(task, "cancelling") and task.cancelling()):
                raise StopAsyncIteration from None
            raise

    def cancel(self) -> None:
        self.is_cancelled = True
        self._call.cancel()


class _Cancellable:
    def __init__(self, messages: Messages[Any]) -> None:
        self._messages = messages

    def cancel(self) -> None:
        """Stops the work at the server; iteration then ends. Without effect after the end."""
        self._messages.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.cancel()


class AsyncStream(_Cancellable):
    """A generation under way: an asynchronous iterator over its chunks. With `async with`, one that is left early is cancelled."""

    def __init__(self, messages: Messages[inference_pb2.GenerateResponse], num_choices: int) -> None:
        super().__init__(messages)
        self._answer = Answer(num_choices)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        try:
            return self._answer.add(await self._messages.__anext__())
        except StopAsyncIteration:
            if not self._messages.is_cancelled:
                self._answer.check_complete()
            raise
        except Error:
            self.cancel()
            raise

    @property
    def request_id(self) -> str:
        return self._answer.request_id

    @property
    def completion(self) -> Completion:
        return self._answer.completion()

    async def result(self) -> Completion:
        async for _ in self:
            pass
        return self.completion


class AsyncJobWatch(_Cancellable):
    """The states of a job: now, and after every change. Ends when the job is over."""

    def __aiter__(self) -> AsyncIterator[Job]:
        return self

    async def __anext__(self) -> Job:
        return Job((await self._messages.__anext__()).job)


class AsyncJobs:
    """As client.Jobs."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._stub = TrainingServiceStub(connection.channel_of_stubs)

    async def submit(self, spec: Spec, request_id: str = "") -> Job:
        return Job((await self._connection.call(self._stub.SubmitJob, job_values.submit_request(spec, request_id))).job)

    async def fork(self, id: str, changes: Optional[Spec] = None, step: Optional[int] = None, skip_batches: int = 0, request_id: str = "") -> Job:
        return Job((await self._connection.call(self._stub.ForkJob, job_values.fork_request(id, changes, step, skip_batches, request_id))).job)

    async def get(self, id: str) -> Job:
        return Job((await self._connection.call(self._stub.GetJob, training_pb2.GetJobRequest(id=id))).job)

    async def list(self, states: Iterable[str] = (), labels: Optional[Mapping[str, str]] = None) -> List[Job]:
        out: List[Job] = []
        states, page_token = tuple(states), ""
        while True:
            page = await self._connection.call(self._stub.ListJobs, job_values.list_request(states, labels, page_token))
            out += map(Job, page.jobs)
            page_token = page.next_page_token
            if not page_token:
                return out

    def watch(self, id: str, min_interval: float = 0) -> AsyncJobWatch:
        settings = self._connection.settings
        return AsyncJobWatch(self._connection.start(self._stub.WatchJob, job_values.watch_request(id, min_interval), settings.watch_timeout))

    async def pause(self, id: str) -> Job:
        return Job((await self._connection.call(self._stub.PauseJob, training_pb2.PauseJobRequest(id=id))).job)

    async def resume(self, id: str, workers: Optional[int] = None) -> Job:
        return Job((await self._connection.call(self._stub.ResumeJob, job_values.resume_request(id, workers))).job)

    async def cancel(self, id: str) -> Job:
        return Job((await self._connection.call(self._stub.CancelJob, training_pb2.CancelJobRequest(id=id))).job)

    async def delete(self, id: str) -> int:
        return (await self._connection.call(self._stub.DeleteJob, training_pb2.DeleteJobRequest(id=id))).freed_bytes


class AsyncClient:
    """As client.Client, for one event loop: make it where that loop runs."""

    def __init__(self, address: str = "127.0.0.1:50051", *, admin_address: Optional[str] = None, api_key: Optional[str] = None,
                 api_key_file: Optional[StrPath] = None, tls: bool = False, tls_ca: Optional[StrPath] = None,
                 tls_cert: Optional[StrPath] = None, tls_key: Optional[StrPath] = None, timeout: float = 300, call_timeout: float = 30,
                 watch_timeout: float = 1800) -> None:
        self._settings = make_settings(
            address, admin_address=admin_address, api_key=api_key, api_key_file=api_key_file, tls=tls, tls_ca=tls_ca, tls_cert=tls_cert,
            tls_key=tls_key, timeout=timeout, call_timeout=call_timeout, watch_timeout=watch_timeout)
        self._users = _Connection(self._settings.address, self._settings)
        self._operators = _Connection(self._settings.admin_address, self._settings)
        self._inference = InferenceServiceStub(self._users.channel_of_stubs)
        self._admin = AdminServiceStub(self._operators.channel_of_stubs)
        self.jobs = AsyncJobs(self._operators)

    async def close(self) -> None:
        await self._users.channel.close()
        await self._operators.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await self.close()

    def stream(self, prompt: Optional[str] = None, *, messages: Optional[Iterable[requests.Message]] = None,
               token_ids: Optional[Iterable[int]] = None, **options: Unpack[requests.GenerateOptions]) -> AsyncStream:
        request = requests.generate_request(prompt, messages, token_ids, options)
        timeout = options.get("timeout") or self._settings.timeout
        return AsyncStream(self._users.start(self._inference.Generate, request, timeout), request.n)

    async def generate(self, prompt: Optional[str] = None, *, messages: Optional[Iterable[requests.Message]] = None,
                       token_ids: Optional[Iterable[int]] = None, **options: Unpack[requests.GenerateOptions]) -> Completion:
        async with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            return await stream.result()

    async def abort(self, request_id: str) -> None:
        await self._users.call(self._inference.Abort, inference_pb2.AbortRequest(request_id=request_id))

    async def tokenize(self, text: Optional[str] = None, *, messages: Optional[Iterable[requests.Message]] = None, model: str = "",
                       **options: Unpack[requests.TokenizeOptions]) -> Tokens:
        response = await self._users.call(self._inference.Tokenize, requests.tokenize_request(text, messages, model, options))
        return Tokens(tuple(response.token_ids), tuple(response.tokens), response.rendered_text)

    async def detokenize(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True, model: str = "") -> str:
        request = requests.detokenize_request(token_ids, skip_special_tokens, model)
        return (await self._users.call(self._inference.Detokenize, request)).text

    async def model_info(self, model: str = "") -> inference_pb2.GetModelInfoResponse:
        return await self._users.call(self._inference.GetModelInfo, inference_pb2.GetModelInfoRequest(model=model))

    async def load(self) -> inference_pb2.GetLoadResponse:
        return await self._users.call(self._inference.GetLoad, inference_pb2.GetLoadRequest())

    async def wait_ready(self, timeout: float = 60) -> None:
        until = time.monotonic() + timeout
        while True:
            left = max(until - time.monotonic(), 0.001)
            try:
                load = await self._users.call(self._inference.GetLoad, inference_pb2.GetLoadRequest(), min(left, self._settings.call_timeout))
                if load.ready:
                    return
                why = load.not_ready_reason
            except (Unavailable, ModelLoading, DeadlineExceeded) as error:
                why = error.message
            if time.monotonic() + POLL_SECONDS >= until:
                raise not_ready(self._settings.address, timeout, why)
            await asyncio.sleep(POLL_SECONDS)

    async def experts(self, layers: Iterable[int] = (), why: Optional[Tuple[int, int]] = None) -> admin_pb2.GetExpertsResponse:
        return await self._operators.call(self._admin.GetExperts, requests.experts_request(layers, why))

    async def plan(self) -> admin_pb2.GetPlanResponse:
        return await self._operators.call(self._admin.GetPlan, admin_pb2.GetPlanRequest())
