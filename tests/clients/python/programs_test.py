"""The console script `switchyard`: it finds the programs, starts a server, passes other commands on."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import switchyard
from serving import BIN, MODEL, SOON, Server

SCRIPT = Path(sys.executable).parent / "switchyard"


def run(*arguments, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")}
    return subprocess.run([SCRIPT, *arguments], env={**kept, **environment}, timeout=SOON, capture_output=True, text=True)


class ProgramsTest(unittest.TestCase):
    def test_serve_starts_a_server_that_sigterm_stops(self):
        one = Server([SCRIPT, "serve", MODEL, "--port", "0", "--metrics_port=-1", "--http-port=-1"],
                     env={**os.environ, "SWITCHYARD_BIN_DIR": str(BIN)})
        try:
            with switchyard.Client(one.address) as client:
                client.wait_ready(SOON)
                self.assertEqual(len(client.generate("The sea", max_tokens=4, ignore_eos=True).token_ids), 4)
        finally:
            self.assertEqual(one.stop(), 0)

    def test_programs_are_found_on_the_path_but_not_the_script(self):
        path = os.pathsep.join([str(SCRIPT.parent), str(BIN), os.environ["PATH"]])
        for arguments in (["version"], ["help", "generate"], ["no-such-command"]):
            mine, its = run(*arguments, PATH=path), subprocess.run([BIN / "switchyard", *arguments], capture_output=True, text=True)
            self.assertEqual((mine.returncode, mine.stdout, mine.stderr), (its.returncode, its.stdout, its.stderr))
        self.assertIn("--local_workers", run("serve", "--help", PATH=path).stdout)
        self.assertIn("switchyard serve MODEL", run(PATH=path).stdout)

    def test_what_is_missing_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            nowhere = run("serve", MODEL, SWITCHYARD_BIN_DIR=folder)
            self.assertEqual((nowhere.returncode, nowhere.stdout), (2, ""))
            self.assertIn(f"no program switchyard-server in {folder}, which SWITCHYARD_BIN_DIR names", nowhere.stderr)
        twice = run("serve", MODEL, "--model=x", SWITCHYARD_BIN_DIR=str(BIN))
        self.assertEqual(twice.returncode, 2)
        self.assertIn(f"the model is given twice: {MODEL} and --model", twice.stderr)

    @unittest.skipIf(any(Path(folder, "switchyard-server").exists() for folder in ("/usr/bin", "/usr/local/bin")), "the programs are installed")
    def test_nothing_found_says_where_it_looked(self):
        for arguments in (["serve", MODEL], ["status"]):
            nowhere = run(*arguments, PATH=str(SCRIPT.parent))
            self.assertEqual(nowhere.returncode, 2)
            self.assertRegex(nowhere.stderr, "no program switchyard.*: not in the package, on PATH, in /usr/local/bin, in /usr/bin")
            self.assertIn("deploy/build.sh", nowhere.stderr)


if __name__ == "__main__":
    unittest.main()
