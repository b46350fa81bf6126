"""A training job's life through the Python clients, on a model small enough that a step takes milliseconds."""

import asyncio
import json
import shutil
import tempfile
import unittest
from pathlib import Path

import switchyard
from serving import MODEL, SOON, server

SPEC = {"architecture": "tiny", "datasets": ["text.jsonl"], "steps": 12, "sequence_length": 32, "batch_sequences": 4,
        "optimizer": {"learning_rate": 3e-3, "schedule": "linear"}, "checkpoints": {"every_steps": 4}, "seed": 7}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 4,
        "moe_intermediate_size": 32, "max_window_layers": 2}


def make_files(root):
    """Datasets and checkpoints with the architecture `tiny`: the demo model's, with its tokenizer."""
    tiny, datasets = root / "checkpoints/tiny", root / "datasets"
    tiny.mkdir(parents=True)
    datasets.mkdir()
    config = json.loads(Path(MODEL, "config.json").read_text(encoding="utf-8"))
    (tiny / "config.json").write_text(json.dumps({**config, **TINY}))
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(Path(MODEL, file), tiny)
    texts = [Path(file).read_text(encoding="utf-8") for file in ("README.md", "workers/train/README.md", "workers/comm/README.md")]
    (datasets / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


class JobsTest(unittest.TestCase):
    def test_a_job_is_submitted_watched_paused_resumed_and_cancelled(self):
        with tempfile.TemporaryDirectory() as folder:
            make_files(Path(folder))
            with server("--local_train_workers=1", "--train_threads=1", f"--dataset_root={folder}/datasets",
                        f"--checkpoint_root={folder}/checkpoints") as one:
                with switchyard.Client(one.address, admin_address=one.admin_address) as client:
                    self.trains(client)
                    self.names_problems(client)
                    done = self.pauses(client)
                    asyncio.run(asyncio.wait_for(self.does_so_asynchronously(one, done), SOON))

    def trains(self, client):
        spec = {**SPEC, "labels": {"what": "test"}, "evaluation": ["text.jsonl"], "evaluation_names": ["held"],
                "checkpoints": {"every_steps": 4, "keep_best": True}}
        job = client.jobs.submit(spec, request_id="first")
        self.assertEqual((client.jobs.submit(spec, request_id="first").id, job.steps), (job.id, 12))
        with self.assertRaises(switchyard.Exists):
            client.jobs.submit(SPEC, request_id="first")
        seen = list(client.jobs.watch(job.id))
        self.assertTrue(all(not state.is_over for state in seen[:-1]))
        last = seen[-1]
        self.assertEqual((last.state, last.step, last.error, last.is_over), ("succeeded", 12, None, True), last)
        self.assertTrue(0 < last.loss < 10 and last.checkpoint, last)
        self.assertEqual((last.evaluations, last.best_checkpoint), ({"held": last.evaluation}, last.checkpoint), last)
        self.assertEqual(client.jobs.get(job.id).message, last.message)
        self.assertEqual([j.id for j in client.jobs.list(states=["succeeded"], labels={"what": "test"})], [job.id])
        self.assertEqual(client.jobs.list(states=["failed"]), [])
        fork = client.jobs.fork(job.id, {"steps": 16, "optimizer": {"learning_rate": 1e-3, "warmup_steps": 0}}, step=8)
        self.assertEqual((fork.parent, job.parent, fork.message.origin.step, fork.steps), (job.id, None, 8, 16))
        self.assertEqual(list(client.jobs.watch(fork.id))[-1].step, 16)
        self.assertEqual(fork.message.spec.optimizer.schedule, job.message.spec.optimizer.schedule)
        self.assertGreater(client.jobs.delete(fork.id), 0)
        with self.assertRaises(switchyard.NotFound):
            client.jobs.get(fork.id)

    def names_problems(self, client):
        with self.assertRaises(switchyard.BadRequest) as caught:
            client.jobs.submit({**SPEC, "steps": -1})
        self.assertIn("steps", str(caught.exception))
        with self.assertRaises(switchyard.BadFile) as missing:
            client.jobs.submit({**SPEC, "datasets": ["none.jsonl"]})
        self.assertIn("none.jsonl", str(missing.exception))
        with self.assertRaises(switchyard.NotFound) as unknown:
            client.jobs.get("job-none")
        self.assertEqual(unknown.exception.reason, "JOB_NOT_FOUND")

    def pauses(self, client):
        """Returns the id of a job that was cancelled."""
        id = client.jobs.submit({**SPEC, "steps": 100000}).id
        with client.jobs.watch(id) as states:
            next(state for state in states if state.step > 0)
            client.jobs.pause(id)
            paused = next(state for state in states if state.state == "paused")
            self.assertGreater(paused.step, 0)
            client.jobs.resume(id)
            next(state for state in states if state.step > paused.step)
            client.jobs.cancel(id)
            self.assertEqual([state.state for state in states][-1], "cancelled")
        with self.assertRaises(switchyard.NotPossible) as caught:
            client.jobs.resume(id)
        self.assertEqual(caught.exception.reason, "JOB_STATE")
        return id

    async def does_so_asynchronously(self, one, done):
        async with switchyard.AsyncClient(one.address, admin_address=one.admin_address) as client:
            self.assertEqual((await client.jobs.get(done)).state, "cancelled")
            id = (await client.jobs.submit({**SPEC, "steps": 100000})).id
            async with client.jobs.watch(id, min_interval=0.01) as states:
                async for state in states:
                    if state.step > 0 and state.state == "running":
                        await client.jobs.pause(id)
                    elif state.state == "paused":
                        await client.jobs.resume(id, workers=1)
                        break
            self.assertEqual((await client.jobs.list(states=["pending", "preparing", "running"]))[0].id, id)
            await client.jobs.cancel(id)
            self.assertEqual([state.state async for state in client.jobs.watch(id)][-1], "cancelled")
            await client.jobs.delete(id)
            with self.assertRaises(switchyard.NotFound):
                await client.jobs.get(id)


if __name__ == "__main__":
    unittest.main()
