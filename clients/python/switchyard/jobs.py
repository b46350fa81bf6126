"""Training jobs as plain values, and the messages that submit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Union, cast

from google.protobuf import json_format

from switchyard.errors import Error, bad_input, of_status
from switchyard.v1 import training_pb2 as pb

# A message, or the same as `switchyard train submit --spec=FILE` has it: {"precision": "bf16", "steps": 100, ...}
Spec = Union[pb.JobSpec, Mapping[str, Any]]

_FINAL = frozenset(("succeeded", "failed", "cancelled"))


@dataclass(frozen=True)
class Job:
    """A job as it was when the server answered. `message` has all that is known of it."""

    message: pb.Job

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def state(self) -> str:
        """ "pending", "preparing", "running", "pausing", "paused", "cancelling", "succeeded", "failed" or "cancelled"."""
        return pb.JobState.Name(self.message.state).replace("JOB_STATE_", "").lower()

    @property
    def is_over(self) -> bool:
        return self.state in _FINAL

    @property
    def step(self) -> int:
        """Steps done."""
        return self.message.progress.step

    @property
    def steps(self) -> int:
        """Of the job in all; 0: they follow from its epochs, and none was done yet."""
        return self.message.spec.steps or self.message.progress.total_steps

    @property
    def loss(self) -> Optional[float]:
        """Of the last step; None: none was done."""
        return self.message.progress.loss if self.message.HasField("progress") else None

    @property
    def checkpoint(self) -> Optional[str]:
        """The newest one's folder, relative to the checkpoint root; None: none was saved."""
        return self.message.checkpoint.folder if self.message.HasField("checkpoint") else None

    @property
    def best_checkpoint(self) -> Optional[str]:
        """That of the best evaluation, with checkpoints.keep_best; None: there is none."""
        return self.message.best_checkpoint.folder if self.message.HasField("best_checkpoint") else None

    @property
    def evaluation(self) -> Optional[float]:
        """The loss of the newest evaluation, of all sets' tokens; None: there was none."""
        return self.message.evaluation.loss if self.message.HasField("evaluation") else None

    @property
    def evaluations(self) -> Dict[str, float]:
        """The losses of the newest evaluation by its sets. exp() of one is the perplexity, but of a job with dpo, where
        it is the mean loss of pairs."""
        return {one.name: one.loss for one in self.message.evaluation.sets}

    @property
    def parent(self) -> Optional[str]:
        """The job of which this one is a fork; None: it is none."""
        return self.message.origin.job if self.message.HasField("origin") else None

    @property
    def note(self) -> str:
        """What the job does or waits for, in words."""
        return self.message.note

    @property
    def error(self) -> Optional[Error]:
        """Why the job failed, or was paused by itself."""
        return of_status(self.message.error) if self.message.HasField("error") else None


def _field(kind: Any, name: str) -> Any:
    """By either of its names, learning_rate or learningRate; None: there is none."""
    return kind.fields_by_name.get(name) or kind.fields_by_camelcase_name.get(name)


def _full_names(values: Mapping[str, Any], kind: Any) -> Dict[str, Any]:
    """Names of enums as protobuf has them: "bf16" becomes "TRAIN_PRECISION_BF16"."""
    out: Dict[str, Any] = {}
    for name, value in values.items():
        field = _field(kind, name)
        if field is not None and field.enum_type is not None and isinstance(value, str):
            prefix = field.enum_type.values_by_number[0].name.replace("UNSPECIFIED", "")
            value = value if value.startswith(prefix) else prefix + value.upper()
        elif field is not None and field.message_type is not None and isinstance(value, Mapping):
            if not field.message_type.GetOptions().map_entry:
                value = _full_names(value, field.message_type)
        out[name] = value
    return out


def _paths(values: Mapping[str, Any], kind: Any, prefix: str = "") -> List[str]:
    """Of the fields that are given, which exist; those of inner messages singly."""
    out: List[str] = []
    for name, value in values.items():
        field = _field(kind, name)
        path = prefix + field.name
        if value is None:  # JSON's null would set the field to its default
            raise bad_input(f"changes: {path}: None is no value; leave it out to keep the parent's")
        inner = field.message_type if isinstance(value, Mapping) else None
        if inner is not None and not inner.GetOptions().map_entry:
            out += _paths(value, inner, f"{path}.")
        else:
            out.append(path)
    return out


def submit_request(spec: Spec, request_id: str) -> pb.SubmitJobRequest:
    request = pb.SubmitJobRequest(request_id=request_id)
    if isinstance(spec, pb.JobSpec):
        request.spec.CopyFrom(spec)
        return request
    try:
        json_format.ParseDict(_full_names(spec, pb.JobSpec.DESCRIPTOR), request.spec)
    except json_format.ParseError as error:
        raise bad_input(f"spec: {error}") from None
    return request


def fork_request(id: str, changes: Optional[Spec], step: Optional[int], skip_batches: int, request_id: str) -> pb.ForkJobRequest:
    request = pb.ForkJobRequest(id=id, step=step, skip_batches=skip_batches, request_id=request_id)
    if changes is None:
        return request
    request.changes.CopyFrom(submit_request(changes, "").spec)
    if not isinstance(changes, pb.JobSpec):
        request.mask.paths.extend(_paths(changes, pb.JobSpec.DESCRIPTOR))  # zeros count, too
    return request


def list_request(states: Iterable[str], labels: Optional[Mapping[str, str]], page_token: str) -> pb.ListJobsRequest:
    request = pb.ListJobsRequest(labels=labels or {}, page_token=page_token)
    for state in states:
        name = "JOB_STATE_" + state.upper()
        if name not in pb.JobState.keys():
            raise bad_input(f"states: {state!r} is none, they are {', '.join(k[len('JOB_STATE_'):].lower() for k in pb.JobState.keys()[1:])}")
        request.states.append(cast(pb.JobState, pb.JobState.Value(name)))
    return request


def watch_request(id: str, min_interval: float) -> pb.WatchJobRequest:
    return pb.WatchJobRequest(id=id, min_interval_ms=round(min_interval * 1000))


def resume_request(id: str, workers: Optional[int]) -> pb.ResumeJobRequest:
    return pb.ResumeJobRequest(id=id, workers=workers)
