"""Client of Switchyard, a server that serves and trains Mixture-of-Experts language models.

    client = switchyard.Client("127.0.0.1:50051")
    print(client.generate("The sea is", max_tokens=64).text)

client.py has Client, aio.py AsyncClient, errors.py what they raise, requests.py their options, switchyard.v1 messages and stubs.
"""

from importlib.metadata import version as _version

from switchyard.aio import AsyncClient, AsyncJobWatch, AsyncStream
from switchyard.answers import (Choice, Chunk, Completion, ExpertPaths, Finish, PositionLogprobs, Timings, TokenLogprob, Tokens, Usage)
from switchyard.client import Client, JobWatch, Stream
from switchyard.errors import (BadField, BadFile, BadInput, BadRequest, Cancelled, DeadlineExceeded, DiskQuota, Error, Exhausted, Exists,
                               ModelLoading, NoKey, NotFound, NotPossible, PromptTooLong, QueueFull, Quota, ServerFault, SlowReader, TooManyStreams,
                               Unavailable, Unreachable, WorkerLost, WrongRole)
from switchyard.jobs import Job

__version__ = _version("switchyard")

__all__ = [
    "AsyncClient", "AsyncJobWatch", "AsyncStream", "BadField", "BadFile", "BadInput", "BadRequest", "Cancelled", "Choice", "Chunk", "Client",
    "Completion", "DeadlineExceeded", "DiskQuota", "Error", "Exhausted", "Exists", "ExpertPaths", "Finish", "Job", "JobWatch", "ModelLoading", "NoKey",
    "NotFound", "NotPossible", "PositionLogprobs", "PromptTooLong", "QueueFull", "Quota", "ServerFault", "SlowReader", "Stream", "Timings",
    "TokenLogprob", "Tokens", "TooManyStreams", "Unavailable", "Unreachable", "Usage", "WorkerLost", "WrongRole",
]
