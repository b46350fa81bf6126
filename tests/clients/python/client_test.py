"""The Python clients against a server of the demo model: answers, streams, errors, many at once."""

import asyncio
import concurrent.futures
import json
import os
import tempfile
import threading
import unittest
from pathlib import Path

import switchyard
from serving import SOON, command_line, command_line_answer, server, wait_until

PROMPT = "In the beginning"
LONG = {"max_tokens": 900, "n": 16, "ignore_eos": True, "temperature": 0}  # seconds, of which tests see the first
TALK = [{"role": "user", "content": "Hello"}]


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = server()
        cls.server = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        cls.client = switchyard.Client(cls.server.address, admin_address=cls.server.admin_address)
        cls.addClassCleanup(cls.client.close)
        cls.client.wait_ready(SOON)

    def wait_idle(self):
        wait_until(lambda: self.client.load().running_requests == 0, "no request runs")

    def test_an_answer_is_that_of_the_command_line(self):
        mine = self.client.generate(PROMPT, max_tokens=24, temperature=0, logprobs=2, prompt_logprobs=0, return_expert_paths=True)
        its = command_line_answer(self.server.address, "--text=" + PROMPT, "--max_tokens=24", "--temperature=0", "--logprobs=2",
                                  "--prompt_logprobs=0", "--return_expert_paths")
        self.assertEqual((mine.text, list(mine.token_ids), mine.finish_reason, mine.model),
                         (its["text"], its["token_ids"], its["finish_reason"], its["model"]))
        self.assertEqual([(p.chosen.token_id, list(p.chosen.bytes), len(p.top)) for p in mine.logprobs],
                         [(p["token_id"], p["bytes"], 2) for p in its["logprobs"]])
        self.assertEqual(b"".join(p.chosen.bytes for p in mine.logprobs).decode(), mine.text)
        self.assertEqual([p.chosen.token_id for p in mine.prompt_logprobs], [p["token_id"] for p in its["prompt_logprobs"]])
        self.assertEqual([[list(mine.expert_paths.at(row, layer)) for layer in range(mine.expert_paths.num_moe_layers)]
                          for row in range(mine.expert_paths.num_rows)], its["expert_paths"])
        self.assertEqual((mine.usage.prompt_tokens, mine.usage.completion_tokens), (its["usage"]["prompt_tokens"], 24))
        self.assertGreater(mine.timings.decode_seconds, 0)

    def test_prompts_are_text_conversations_or_tokens(self):
        ids = self.client.tokenize(PROMPT).token_ids
        self.assertEqual(list(ids), json.loads(command_line("tokenize", "--server=" + self.server.address, "--json", PROMPT))["token_ids"])
        self.assertEqual(self.client.detokenize(ids), PROMPT)
        self.assertEqual(self.client.generate(token_ids=ids, max_tokens=8, temperature=0).text,
                         self.client.generate(PROMPT, max_tokens=8, temperature=0).text)
        answer = self.client.generate(messages=TALK, max_tokens=8, temperature=0)
        its = command_line_answer(self.server.address, "--messages=" + json.dumps(TALK), "--max_tokens=8", "--temperature=0")
        self.assertEqual(answer.text, its["text"])
        rendered = self.client.tokenize(messages=TALK)
        self.assertIn("Hello", rendered.rendered_text)
        self.assertEqual(answer.usage.prompt_tokens, len(rendered.token_ids))

    def test_options_count(self):
        self.assertIn(self.client.generate(PROMPT, choice=["yes", "no"]).text, ("yes", "no"))
        self.assertEqual(type(json.loads(self.client.generate(PROMPT, json_schema={"type": "boolean"}).text)), bool)
        word = self.client.generate(PROMPT, max_tokens=24, temperature=0, ignore_eos=True).text.split()[3]
        stopped = self.client.generate(PROMPT, max_tokens=24, temperature=0, ignore_eos=True, stop=word)
        self.assertEqual((stopped.finish_reason, stopped.choices[0].finish.stop_string), ("stop", word))
        both = self.client.generate(PROMPT, max_tokens=5, n=2, seed=3)
        self.assertEqual([len(choice.token_ids) for choice in both.choices], [5, 5])
        self.assertEqual(self.client.generate(PROMPT, max_tokens=5, n=2, seed=3).choices[1].text, both.choices[1].text)

    def test_pieces_joined_are_the_whole(self):
        whole = self.client.generate(PROMPT, max_tokens=40, temperature=0)
        with self.client.stream(PROMPT, max_tokens=40, temperature=0) as stream:
            pieces = list(stream)
        self.assertGreater(len(pieces), 5)
        self.assertEqual("".join(piece.text for piece in pieces), whole.text)
        self.assertEqual([t for piece in pieces for t in piece.token_ids], list(whole.token_ids))
        self.assertEqual([piece.finish is not None for piece in pieces], [False] * (len(pieces) - 1) + [True])
        self.assertEqual(stream.completion.choices[0].text, whole.text)

    def wait_aborted(self, requests):
        """Until the server has ended this many of LONG early, and nothing else runs."""
        aborted = 'switchyard_request_success_total{finished_reason="abort"}'
        wait_until(lambda: self.server.count(aborted) >= self.aborted + requests * LONG["n"], "choices are aborted")
        self.aborted = self.server.count(aborted)
        self.wait_idle()

    def setUp(self):
        self.aborted = self.server.count('switchyard_request_success_total{finished_reason="abort"}')

    def test_cancel_frees_the_servers_stream(self):
        stream = self.client.stream(PROMPT, **LONG)
        first = next(stream)
        wait_until(lambda: self.client.load().running_requests > 0, "the request runs")
        threading.Timer(0, stream.cancel).start()  # from another thread
        rest = list(stream)
        self.assertIsNone(stream.completion.finish_reason)
        self.assertEqual(stream.completion.text, "".join(chunk.text for chunk in [first, *rest] if chunk.choice == 0))
        self.wait_aborted(1)
        with self.client.stream(PROMPT, **LONG) as left_early:
            next(left_early)
        self.wait_aborted(1)
        for chunk in self.client.stream(PROMPT, **LONG):  # dropped, not cancelled
            break
        self.wait_aborted(1)

    def test_abort_ends_any_request(self):
        with self.client.stream(PROMPT, request_id="mine", **LONG) as stream:
            next(stream)
            with self.assertRaises(switchyard.Exists):
                self.client.generate(PROMPT, request_id="mine")
            self.client.abort("mine")
            self.assertEqual(stream.result().finish_reason, "abort")
        with self.assertRaises(switchyard.NotFound) as caught:
            self.client.abort("mine")
        self.assertEqual(caught.exception.reason, "REQUEST_NOT_FOUND")

    def test_errors_have_classes_and_values(self):
        with self.assertRaises(switchyard.BadField) as caught:
            self.client.generate(PROMPT, temperature=-1)
        error = caught.exception
        self.assertEqual((error.code, error.reason, error.field, error.limit, error.actual, error.retryable),
                         ("INVALID_ARGUMENT", "BAD_FIELD", "sampling.temperature", "[0, 100]", "-1", False))
        for kind, call in [
            (switchyard.PromptTooLong, lambda: self.client.generate(token_ids=[5] * 20000)),
            (switchyard.NotFound, lambda: self.client.generate(PROMPT, model="other")),
            (switchyard.BadField, lambda: self.client.generate(PROMPT, regex="(")),
            (switchyard.DeadlineExceeded, lambda: self.client.generate(PROMPT, timeout=0.02, **LONG)),
            (TimeoutError, lambda: self.client.generate(PROMPT, timeout=0.02, **LONG)),
            (switchyard.NotPossible, lambda: self.client.jobs.list()),
            (switchyard.Unreachable, lambda: switchyard.Client("127.0.0.1:1").load()),
            (switchyard.DeadlineExceeded, lambda: switchyard.Client("127.0.0.1:1").wait_ready(0.3)),
        ]:
            with self.subTest(kind=kind), self.assertRaises(kind):
                call()
        self.wait_idle()

    def test_the_servers_state_is_known(self):
        info = self.client.model_info()
        self.assertEqual((info.num_experts, info.has_chat_template), (self.client.experts().num_experts, True))
        self.assertEqual([layer.layer for layer in self.client.experts(layers=[1]).layers], [1])
        self.assertIn("expert", self.client.experts(why=(0, 1)).why)
        self.assertTrue(self.client.load().ready)
        self.assertEqual(self.client.plan().model, info.model)

    def test_sixteen_at_once(self):
        prompts = [f"{PROMPT} {i}" for i in range(16)]
        alone = [self.client.generate(prompt, max_tokens=16, temperature=0).text for prompt in prompts]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            together = list(pool.map(lambda prompt: self.client.generate(prompt, max_tokens=16, temperature=0).text, prompts))
        self.assertEqual(together, alone)

        async def ask():
            async with switchyard.AsyncClient(self.server.address) as client:
                return await asyncio.gather(*(client.generate(prompt, max_tokens=16, temperature=0) for prompt in prompts))

        self.assertEqual([answer.text for answer in asyncio.run(ask())], alone)

    def test_the_asynchronous_client_does_the_same(self):
        async def use():
            async with switchyard.AsyncClient(self.server.address, admin_address=self.server.admin_address) as client:
                await client.wait_ready(SOON)
                whole = await client.generate(PROMPT, max_tokens=20, temperature=0)
                self.assertEqual(whole.text, self.client.generate(PROMPT, max_tokens=20, temperature=0).text)
                async with client.stream(PROMPT, max_tokens=20, temperature=0) as stream:
                    self.assertEqual("".join([chunk.text async for chunk in stream]), whole.text)
                self.assertEqual(stream.completion.finish_reason, "length")
                async with client.stream(PROMPT, **LONG) as stream:
                    await stream.__anext__()
                    stream.cancel()
                    self.assertLess(len([chunk async for chunk in stream]), LONG["max_tokens"])
                self.assertIsNone(stream.completion.finish_reason)
                started = client.stream(PROMPT, **LONG)
                await started.__anext__()
                task = asyncio.ensure_future(started.result())
                await asyncio.sleep(0)  # it waits for a chunk now
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                with self.assertRaises(switchyard.BadField):
                    await client.generate(PROMPT, top_p=2)
                with self.assertRaises(switchyard.DeadlineExceeded):
                    await switchyard.AsyncClient("127.0.0.1:1").wait_ready(0.3)
                tokens = await client.tokenize(PROMPT)
                self.assertEqual(await client.detokenize(tokens.token_ids), PROMPT)
                self.assertEqual((await client.model_info()).num_experts, (await client.experts()).num_experts)
                self.assertTrue((await client.load()).ready)
                self.assertEqual((await client.plan()).model, whole.model)
                with self.assertRaises(switchyard.NotFound):
                    await client.abort("none")

        asyncio.run(asyncio.wait_for(use(), SOON))
        self.wait_aborted(2)


class LimitsTest(unittest.TestCase):
    def test_beyond_the_queue_is_an_error_with_advice(self):
        with server("--max_num_seqs=1", "--max_queue=1") as one, switchyard.Client(one.address) as client:
            client.wait_ready(SOON)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                calls = [pool.submit(client.generate, PROMPT, max_tokens=300, ignore_eos=True, temperature=0) for _ in range(16)]
            refused = [call.exception() for call in calls if call.exception()]
            self.assertTrue(0 < len(refused) < 16, refused)
            self.assertEqual(len({call.result().text for call in calls if not call.exception()}), 1)
            for error in refused:
                self.assertIs(type(error), switchyard.QueueFull)
                self.assertTrue(error.retryable and error.retry_after > 0 and error.limit == "1", error)

    def test_keys_open_what_their_role_may(self):
        with tempfile.TemporaryDirectory() as folder:
            keys, own = Path(folder, "keys"), Path(folder, "own")
            made = command_line("keys", "new", "--name=alice", "--role=user")
            for file, name in ((keys, "line: "), (own, "key:  ")):
                file.write_text(made.split(name)[1].splitlines()[0] + "\n")
                file.chmod(0o600)
            with server(f"--api_keys_file={keys}") as one:
                with switchyard.Client(one.address, admin_address=one.admin_address, api_key_file=own) as client:
                    client.wait_ready(SOON)
                    self.assertEqual(len(client.generate(PROMPT, max_tokens=3).token_ids), 3)
                    with self.assertRaises(switchyard.WrongRole):
                        client.experts()
                self.assertNotIn("SWITCHYARD_API_KEY", os.environ)
                for arguments in ({}, {"api_key": "sy-" + "0" * 64}):
                    with switchyard.Client(one.address, **arguments) as client:
                        with self.assertRaises(switchyard.NoKey):
                            client.generate(PROMPT)
                        with self.assertRaises(switchyard.NoKey):
                            client.wait_ready(SOON)


if __name__ == "__main__":
    unittest.main()
