"""The Python client without a server: requests that it makes, answers that it joins, errors that it finds, types of its stubs."""

import os
import pickle
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

import switchyard
from switchyard import answers, errors, jobs, requests
from switchyard.v1 import inference_pb2 as pb
from switchyard.v1 import training_pb2

VALUES = {  # of every option but timeout
    "model": "demo", "request_id": "r", "tools": [{"name": "f"}], "template_args": {"a": 1}, "add_generation_prompt": False,
    "allow_special": True, "add_special_tokens": False, "max_tokens": 3, "min_tokens": 2, "temperature": 0.5, "top_p": 0.5, "top_k": 4,
    "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 2, "logit_bias": {5: -1.5}, "seed": 9, "n": 2,
    "stop": ["a", "b"], "stop_token_ids": [7], "ignore_eos": True, "json_schema": {"type": "string"}, "json_object": True, "regex": "a+",
    "choice": ["x", "y"], "grammar": "root ::= \"a\"", "logprobs": 1, "prompt_logprobs": 0, "skip_special_tokens": False,
    "return_expert_paths": True,
}
CONSTRAINTS = ("json_schema", "json_object", "regex", "choice", "grammar")


def set_fields(message, prefix=""):
    out = set()
    for field, value in message.ListFields():
        out.add(prefix + field.name)
        if field.message_type and field.message_type.full_name.startswith("switchyard.v1.") and hasattr(value, "ListFields"):
            out |= set_fields(value, prefix + field.name + ".")
    return out


class RequestsTest(unittest.TestCase):
    def test_every_option_is_a_field_and_every_field_an_option(self):
        self.assertEqual(set(VALUES) | {"timeout"}, set(requests.GenerateOptions.__annotations__))
        plain = {k: v for k, v in VALUES.items() if k not in CONSTRAINTS}
        seen = set_fields(requests.generate_request(None, [{"role": "user", "content": "Hi", "name": "A"}], None, plain))
        for name in CONSTRAINTS:
            seen |= set_fields(requests.generate_request("Hi", None, None, {name: VALUES[name]}))
        seen |= set_fields(requests.generate_request(None, None, [1], {}))
        for field in pb.GenerateRequest.DESCRIPTOR.fields:
            self.assertIn(field.name, seen)
        for field in pb.SamplingParameters.DESCRIPTOR.fields:
            self.assertIn("sampling." + field.name, seen)
        for field in pb.Constraint.DESCRIPTOR.fields:
            self.assertIn("constraint." + field.name, seen)

    def test_values_arrive(self):
        request = requests.generate_request("Hi", None, None, {"logit_bias": {5: -1.5}, "stop": "a", "temperature": 0, "max_tokens": None,
                                                               "json_schema": {"type": "string"}})
        self.assertEqual(dict(request.sampling.logit_bias), {5: -1.5})
        self.assertEqual((list(request.stop), request.sampling.HasField("temperature"), request.HasField("max_tokens")), (["a"], True, False))
        self.assertEqual(request.constraint.json_schema, '{"type": "string"}')
        message = requests.generate_request(None, [{"role": "tool", "content": None, "tool_call_id": "7"}], None, {}).messages.messages[0]
        self.assertFalse(message.HasField("content"))
        self.assertEqual(message.extra_json, '{"content": null, "tool_call_id": "7"}')

    def test_what_is_wrong_is_named(self):
        for args, options, words in [
            ((None, None, None), {}, "exactly one of prompt, messages, token_ids is needed, 0 given"),
            (("a", None, [1]), {}, "2 given"),
            (([1, 2], None, None), {}, "token ids go into token_ids"),
            (("a", None, None), {"tools": [{}]}, "tools: goes with messages only"),
            ((None, [{"content": "Hi"}], None), {}, "messages: each must be like"),
            ((None, ["Hi"], None), {}, "messages: each must be like"),
            (("a", None, None), {"max_tokens": "x"}, "max_tokens: "),
            (("a", None, None), {"max_tokens": 2 ** 40}, "max_tokens: "),
            (("a", None, None), {"logit_bias": [1]}, "logit_bias: "),
            ((None, None, ["x"]), {}, "token_ids: "),
            (("a", None, None), {"json_schema": {1, 2}}, "json_schema: "),
            (("a", None, None), {"regex": "a", "grammar": "b"}, "at most one of json_schema, json_object"),
        ]:
            with self.subTest(words=words), self.assertRaisesRegex(switchyard.BadInput, words):
                requests.generate_request(*args, options)
        with self.assertRaisesRegex(TypeError, "unexpected option 'max_token'; did you mean 'max_tokens'"):
            requests.generate_request("a", None, None, {"max_token": 1})
        with self.assertRaisesRegex(TypeError, r"stream\(\) returns a stream"):
            requests.generate_request("a", None, None, {"stream": True})

    def test_specs_have_the_names_of_the_command_line(self):
        spec = {"architecture": "demo-model", "precision": "bf16", "steps": 3, "optimizer": {"schedule": "linear", "learning_rate": 0.1},
                "balance": "per_layer", "labels": {"precision": "a label"}, "checkpoints": {"every_steps": 2}}
        out = jobs.submit_request(spec, "r").spec
        self.assertEqual((out.precision, out.optimizer.schedule), (training_pb2.TRAIN_PRECISION_BF16, training_pb2.LR_SHAPE_LINEAR))
        self.assertEqual((out.balance, dict(out.labels)), (training_pb2.BALANCE_LOSS_PER_LAYER, {"precision": "a label"}))
        for wrong, words in [({"stepz": 1}, "stepz"), ({"precision": "fp7"}, "FP7"), ({"optimizer": 3}, "optimizer"), ({"steps": "x"}, "steps")]:
            with self.subTest(wrong=wrong), self.assertRaisesRegex(switchyard.BadInput, words):
                jobs.submit_request(wrong, "")
        with self.assertRaisesRegex(switchyard.BadInput, "'done' is none, they are pending, "):
            jobs.list_request(["done"], None, "")

    def test_changes_of_a_fork_are_a_mask(self):
        request = jobs.fork_request("job-1", {"batchSequences": 8, "optimizer": {"learningRate": 0.5, "warmup_steps": 0}, "labels": {"a": "b"}}, 4, 2, "r")
        self.assertEqual(sorted(request.mask.paths), ["batch_sequences", "labels", "optimizer.learning_rate", "optimizer.warmup_steps"])
        self.assertEqual((request.changes.batch_sequences, request.changes.optimizer.learning_rate, request.step), (8, 0.5, 4))
        self.assertEqual(list(jobs.fork_request("job-1", None, None, 0, "").mask.paths), [])
        self.assertEqual(jobs.fork_request("job-1", {"precision": "bf16"}, None, 0, "").changes, jobs.submit_request({"precision": "bf16"}, "").spec)
        for changes, path in (({"optimizer": None}, "optimizer"), ({"optimizer": {"learningRate": None}}, "optimizer.learning_rate")):
            with self.assertRaisesRegex(switchyard.BadInput, f"^changes: {path}: None is no value"):
                jobs.fork_request("job-1", changes, None, 0, "")
        with self.assertRaisesRegex(switchyard.BadInput, "speed"):
            jobs.fork_request("job-1", {"speed": 1}, None, 0, "")


class AnswersTest(unittest.TestCase):
    def test_choices_are_joined(self):
        answer = answers.Answer(2)
        paths = [pb.ExpertPaths(first_position=p, num_moe_layers=2, top_k=1, experts=bytes([p, 0, 255, 255])) for p in (0, 1)]
        for message in [pb.GenerateResponse(request_id="r", model="m", seed=2**63, text="a", token_ids=[1], expert_paths=paths[0]),
                        pb.GenerateResponse(choice=1, text="x", token_ids=[9, 8]),
                        pb.GenerateResponse(index=1, token_ids=[2], expert_paths=paths[1]),
                        pb.GenerateResponse(index=2, text="é", token_ids=[3], finish=pb.Finish(reason=pb.FINISH_REASON_STOP, stop_string="."))]:
            answer.add(message)
        whole = answer.completion()
        self.assertEqual((whole.text, whole.token_ids, whole.finish_reason, whole.seed), ("aé", (1, 2, 3), "stop", 2**63))
        self.assertEqual((whole.choices[0].finish.stop_string, whole.choices[0].finish.stop_token_id), (".", None))
        self.assertEqual((whole.expert_paths.num_rows, whole.expert_paths.at(1, 0), whole.expert_paths.at(1, 1)), (2, (1,), (-1,)))
        self.assertEqual((whole.choices[1].text, whole.choices[1].finish), ("x", None))
        with self.assertRaisesRegex(switchyard.ServerFault, "ended before choice 1 did"):
            answer.check_complete()

    def test_contradictions_are_errors(self):
        for message, words in [(pb.GenerateResponse(choice=1), "choice 1 of 1"), (pb.GenerateResponse(index=4, token_ids=[1]), "token 4 came, 0 is next")]:
            with self.subTest(words=words), self.assertRaisesRegex(switchyard.ServerFault, words):
                answers.Answer(1).add(message)


class ErrorsTest(unittest.TestCase):
    def test_every_reason_has_a_class(self):
        for name in pb.ErrorReason.keys():
            if name != "ERROR_REASON_UNSPECIFIED":
                self.assertIn(name, errors._OF_REASON)

    def test_details_are_read(self):
        status = status_pb2.Status(code=8, message="4 requests wait, limit 4")
        for detail in (error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="switchyard", metadata={"limit": "4", "actual": "4", "requestId": "r"}),
                       error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))):
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        error = errors.of_status(status)
        self.assertIs(type(error), switchyard.QueueFull)
        self.assertIsInstance(error, switchyard.Exhausted)
        self.assertEqual((error.code, error.limit, error.actual, error.request_id, error.retry_after), ("RESOURCE_EXHAUSTED", "4", "4", "r", 1.5))
        self.assertEqual(str(error), "4 requests wait, limit 4 [RESOURCE_EXHAUSTED QUEUE_FULL]; try again in 1.5 s")
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), again.metadata, again.retry_after), (type(error), error.metadata, 1.5))

    def test_a_quota_of_the_disk_says_what_is_used(self):
        status = status_pb2.Status(code=8, message="m")
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.ErrorInfo(reason="DISK_QUOTA", metadata={"limit": "9", "used": "7", "needed": "3", "actual": "10"}))
        status.details.append(packed)
        error = errors.of_status(status)
        self.assertIs(type(error), switchyard.DiskQuota)
        self.assertIsInstance(error, switchyard.Exhausted)
        self.assertEqual((error.limit, error.metadata["used"], error.metadata["needed"]), ("9", "7", "3"))

    def test_reasons_of_newer_servers_go_by_code(self):
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.ErrorInfo(reason="SOMETHING_NEW"))
        error = errors.of_status(status_pb2.Status(code=14, message="m", details=[packed]))
        self.assertEqual((type(error), error.reason, error.retryable), (switchyard.Unavailable, "SOMETHING_NEW", True))
        self.assertIs(type(errors.of_status(status_pb2.Status(code=15))), switchyard.ServerFault)


class ArgumentsTest(unittest.TestCase):
    def test_bad_arguments_are_named(self):
        for arguments, words in [
            ({"address": "localhost"}, "must be HOST:PORT"), ({"address": "::1:50051"}, "in brackets"), ({"address": "a:70000"}, "1 to 65535"),
            ({"admin_address": "x"}, "must be HOST:PORT"), ({"timeout": 0}, "timeout: must be more than 0"),
            ({"call_timeout": float("inf")}, "call_timeout"), ({"api_key": "a b"}, "printable ASCII"), ({"api_key": ""}, "has 0 characters"),
            ({"api_key": "a", "api_key_file": "b"}, "at most one of"), ({"api_key_file": "/no/such"}, "/no/such: cannot be read: No such file"),
            ({"api_key_file": "/"}, "/: "), ({"tls_cert": "a"}, "go together"), ({"tls_ca": "/no/ca"}, "/no/ca: cannot be read"),
        ]:
            with self.subTest(words=words), self.assertRaisesRegex(switchyard.BadInput, words):
                switchyard.Client(**arguments)
            with self.subTest(words=words), self.assertRaisesRegex(ValueError, words):
                switchyard.AsyncClient(**arguments)

    def test_a_key_comes_from_one_place(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, SWITCHYARD_API_KEY="of-environment"):
            file = Path(folder, "key")
            file.write_text("of-file\n")
            file.chmod(0o644)
            with self.assertRaisesRegex(switchyard.BadInput, r"mode 0644\): chmod 600 it"):
                switchyard.Client(api_key_file=file)
            file.chmod(0o600)
            for arguments, key in [({}, "of-environment"), ({"api_key": "own"}, "own"), ({"api_key_file": file}, "of-file")]:
                self.assertEqual(switchyard.Client(**arguments)._settings.metadata, (("authorization", "Bearer " + key),))
            file.write_text("\n")
            with self.assertRaisesRegex(switchyard.BadInput, "is empty"):
                switchyard.Client(api_key_file=file)

    def test_administration_is_one_port_further(self):
        self.assertEqual(switchyard.Client("[::1]:7000")._settings.admin_address, "[::1]:7001")
        self.assertEqual(switchyard.Client("a:1", admin_address="b:2")._settings.admin_address, "b:2")


if __name__ == "__main__":
    unittest.main()
