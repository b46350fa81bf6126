"""What tests of the Python client share: a server of the demo model, and what the C++ client says."""

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

BIN = Path(os.environ["SY_TEST_BIN_DIR"])
MODEL = "deploy/demo-model"
SOON = 60  # seconds; what takes longer never comes


def wait_until(is_so, what):
    until = time.monotonic() + SOON
    while not is_so():
        if time.monotonic() > until:
            raise AssertionError(f"not within {SOON} s: {what}")
        time.sleep(0.02)


class Server:
    """A server under way, started by a command; `address` and `admin_address` are known once it listens."""

    def __init__(self, command, env=None):
        self.log = tempfile.NamedTemporaryFile(mode="r", suffix=".log")
        self.process = subprocess.Popen([str(part) for part in command], stdout=self.log.fileno(), stderr=subprocess.STDOUT, env=env)
        wait_until(lambda: self.process.poll() is not None or self._find("administration") and self._find("gRPC"), "the server listens")
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended: {self.output()}")
        self.address, self.admin_address = self._find("gRPC"), self._find("administration")

    def output(self):
        return Path(self.log.name).read_text(encoding="utf-8")

    def _find(self, what):
        found = re.search(what + r" on ([^,\s]+:\d+)", self.output())
        return found and found.group(1)

    def count(self, metric):
        """The value of a counter, with its labels but model_name and engine."""
        url = re.search(r" server: .*metrics on (http://[^,\s]+)", self.output()).group(1)
        with urllib.request.urlopen(url, timeout=SOON) as page:
            lines = [re.sub(r'(engine|model_name)="[^"]*",?', "", line).replace(",}", "}") for line in page.read().decode().splitlines()]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == metric)

    def stop(self):
        """Asks it to end; returns its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(SOON)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.close()


@contextlib.contextmanager
def server(*flags, model=MODEL):
    one = Server([BIN / "switchyard-server", f"--model={model}", "--port=0", "--metrics_port=0", "--http_port=-1", *flags])
    try:
        yield one
    except BaseException:
        print(one.output()[-4000:])
        raise
    finally:
        one.stop()


def command_line(*arguments):
    """Runs the C++ program; returns its output."""
    return subprocess.run([str(BIN / "switchyard"), *arguments], check=True, timeout=SOON, capture_output=True, text=True).stdout


def command_line_answer(address, *arguments):
    return json.loads(command_line("generate", f"--server={address}", "--json", *arguments))
