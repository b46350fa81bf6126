#!/usr/bin/env python3
"""The web page in a headless Chromium: chats, stops, asks for a key, shows the live view at 1280 and 360 px.

usage: page_test.py BIN_DIR [SCREENSHOTS_DIR]   from the repository's root.  77: there is no Chromium here.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from browser import Browser, find_chromium

READ_TURNS = "[...document.querySelectorAll('.turn .text')].map((each) => each.textContent)"
IS_IDLE = "document.getElementById('stop').hidden"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def expect(is_so, what):
    if not is_so:
        raise AssertionError(what)


@contextlib.contextmanager
def server(bin_dir, *flags):
    """A server of the demo model on free ports of loopback; yields the addresses of HTTP and administration."""
    with tempfile.NamedTemporaryFile(mode="r", suffix=".log") as log:
        process = subprocess.Popen(
            [os.path.join(bin_dir, "switchyard-server"), "--model=deploy/demo-model", "--port=0", "--metrics_port=0",
             "--local_workers=2", *flags],
            stdout=log.fileno(), stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + 60
            while not (found := re.search(r"HTTP on (http://[^,\s]+)", open(log.name, encoding="utf-8").read())):
                expect(process.poll() is None and time.monotonic() < until, "the server has not started")
                time.sleep(0.1)
            yield found.group(1), re.search(r"administration on ([^,\s]+)", open(log.name, encoding="utf-8").read()).group(1)
        except BaseException:
            print(open(log.name, encoding="utf-8").read()[-4000:])
            raise
        finally:
            process.terminate()
            process.wait(60)


class PageTest:
    def __init__(self, browser, shots):
        self.browser = browser
        self.shots = shots

    def shot(self, name):
        if self.shots:
            time.sleep(0.3)
            self.browser.screenshot(os.path.join(self.shots, name + ".png"))

    def set_field(self, name, value):
        self.browser.run(f"document.getElementById('{name}').value = {value!r}; 0")

    def ask(self, text):
        self.browser.run("document.getElementById('prompt').focus(); 0")
        self.browser.write(text)
        self.browser.press("Enter", 13, text="\r")

    def chats(self):
        b = self.browser
        b.wait("document.getElementById('state-text').textContent === 'Ready'", "the server is ready")
        self.shot("chat-empty-1280")
        self.set_field("max_tokens", "60")
        self.set_field("seed", "7")
        # Shift+Enter is a new line, Enter sends.
        b.run("document.getElementById('prompt').focus(); 0")
        b.write("In the beginning")
        b.press("Enter", 13, modifiers=8, text="\r")
        b.write("<img src=x onerror=alert(1)>")
        expect("\n" in b.run("document.getElementById('prompt').value"), "Shift+Enter starts a new line")
        b.press("Enter", 13, text="\r")
        b.wait(f"{IS_IDLE} && {READ_TURNS}.length === 2", "an answer")
        turns = b.run(READ_TURNS)
        expect(turns[0] == "In the beginning\n<img src=x onerror=alert(1)>", f"what was said stays text: {turns[0]!r}")
        expect(turns[1] != "", f"an answer: {turns[1]!r}")
        expect(b.run("document.querySelectorAll('.turn .text *').length") == 0, "no text became HTML")
        note = b.run("document.querySelector('.turn.assistant .note').textContent")
        expect(re.search(r"\d+ \+ \d+ tokens · [\d,.]+ tokens/s · first after", note), f"usage and speed: {note!r}")
        self.ask("And then?")
        b.wait(f"{IS_IDLE} && {READ_TURNS}.length === 4", "a second answer")
        expect(b.run("document.activeElement.id") == "prompt", "the focus comes back to the field")
        self.shot("chat-1280")

    def stops(self):
        b = self.browser
        self.set_field("max_tokens", "")
        # The demo model is fast and ends soon: it goes on here, and Esc is pressed at its first word.
        b.run("""{
          const fetch_page = fetch;
          window.fetch = (path, options) => fetch_page(path, options && options.body ? {
            ...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})} : options);
          new MutationObserver((changes, self) => {
            const turns = document.querySelectorAll('.turn .text');
            if (turns.length < 6 || !turns[5].textContent) return;
            self.disconnect();
            document.getElementById('prompt').dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}));
          }).observe(document.getElementById('turns'), {childList: true, subtree: true, characterData: true});
        }; 0""")
        self.ask("Tell me a long story")
        b.wait(f"{READ_TURNS}.length === 6 && {IS_IDLE}", "it stops", 20)
        note = b.run("[...document.querySelectorAll('.turn .note')].pop().textContent")
        expect("stopped" in note, f"it says that it was stopped: {note!r}")
        b.wait("fetch('load').then((answer) => answer.json()).then((load) => load.running_requests === 0)",
               "the server ends a request that was stopped", 10)

    def shows_errors(self):
        b = self.browser
        self.set_field("temperature", "hot")
        self.ask("Hello")
        error = b.run("document.getElementById('chat-error').textContent")
        expect(error == "Temperature: “hot” is no number.", f"a bad field by name: {error!r}")
        self.set_field("temperature", "-3")
        b.run("document.getElementById('compose').requestSubmit(); 0")
        b.wait("document.getElementById('chat-error').textContent.includes('must be within')", "the server's error")
        expect(b.run("document.getElementById('prompt').value") == "Hello", "a message that failed goes back")
        self.shot("chat-error-1280")
        self.set_field("temperature", "")
        b.run("document.getElementById('new-chat').click(); 0")
        expect(b.run(f"{READ_TURNS}.length") == 0, "a new conversation is empty")

    def shows_live(self):
        b = self.browser
        b.run("document.getElementById('to-live').click(); 0")
        b.wait("document.getElementById('out-rate').textContent !== '–'", "tokens a second")
        b.wait("document.querySelectorAll('.worker').length === 2", "two workers")
        b.wait("!document.getElementById('experts-body').hidden", "the experts")
        b.wait("document.querySelectorAll('.job .curve').length === 1", "a job's losses")
        # The keys move, and Enter explains.
        b.run("document.getElementById('map').focus(); 0")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            b.press(key, {"ArrowDown": 40, "ArrowRight": 39}[key])
        expect("Layer 1, expert 1:" in b.run("document.getElementById('cell-text').textContent"), "keys move in the map")
        b.press("Enter", 13, text="\r")
        b.wait("document.getElementById('why-text').textContent.length > 20", "why an expert is where it is")
        # So does a click.
        x, y = b.run("(() => { const box = document.getElementById('map').getBoundingClientRect();"
                     "return [box.left + 5, box.top + 5]; })()")
        b.click(x, y)
        b.wait("document.getElementById('why-title').textContent.includes('expert 0 of layer 0')", "a click explains")

    def fits(self, width, height, name, dark=False):
        b = self.browser
        b.size(width, height, dark)
        for view in ("live", "chat"):
            b.run(f"document.getElementById('to-{view}').click(); 0")
            time.sleep(1)
            expect(b.run(OVERFLOW) <= 0, f"{view}: nothing is wider than {width} px")
            b.run("scrollTo(0, 0)")
            self.shot(f"{view}-{name}")
            if view == "live" and self.shots:
                b.screenshot(os.path.join(self.shots, f"live-whole-{name}.png"), whole=True)

    def asks_only_this_server(self, address):
        asked = [url for url in self.browser.requests() if not url.startswith("about:")]
        strangers = [url for url in asked if not url.startswith(address + "/")]
        expect(not strangers, f"the page asks only its own server, not {strangers}")
        loaded = {url[len(address):] for url in asked if "/page/" in url}
        expect(loaded <= {"/page/page.css", "/page/page.js", "/page/icon.svg"}, f"one style and one script: {loaded}")


@contextlib.contextmanager
def training_flags():
    """Flags of a server that trains, with a text and the demo model's architecture beneath its roots."""
    with tempfile.TemporaryDirectory() as root:
        shutil.copytree("deploy/demo-model", os.path.join(root, "checkpoints", "demo"))
        os.mkdir(os.path.join(root, "data"))
        with open("README.md", encoding="utf-8") as text, \
             open(os.path.join(root, "data", "text.jsonl"), "w", encoding="utf-8") as out:
            out.write(json.dumps({"text": text.read()}) + "\n")
        yield ["--local_train_workers=1", "--train_threads=1", f"--dataset_root={root}/data",
               f"--checkpoint_root={root}/checkpoints"]


def submit_job(bin_dir, admin_address):
    with tempfile.NamedTemporaryFile(mode="w", suffix=".json") as spec:
        json.dump({"architecture": "demo", "datasets": ["text.jsonl"], "evaluation": ["text.jsonl"], "steps": 12,
                   "sequence_length": 32, "batch_sequences": 2, "optimizer": {"learning_rate": 0.003}}, spec)
        spec.flush()
        subprocess.run([os.path.join(bin_dir, "switchyard"), "train", "submit", f"--server={admin_address}",
                        f"--spec={spec.name}"], check=True, stdout=subprocess.DEVNULL)


def test_page(chromium, bin_dir, shots):
    with training_flags() as flags, server(bin_dir, *flags) as (address, admin), Browser(chromium) as browser:
        submit_job(bin_dir, admin)
        test = PageTest(browser, shots)
        browser.size(1280, 860)
        browser.open(address + "/")
        test.chats()
        test.stops()
        test.fits(360, 740, "talk-360")
        browser.size(1280, 860)
        said = browser.complaints()
        expect(not said, f"no errors of scripts or of the content policy: {said}")
        test.shows_errors()
        test.shows_live()
        test.fits(1280, 860, "1280")
        test.fits(1280, 860, "dark-1280", dark=True)
        test.fits(360, 740, "360")
        test.asks_only_this_server(address)


def test_key(chromium, bin_dir, shots):
    """A server with keys asks for one, and shows each what its role may see."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {}
        path = os.path.join(folder, "keys")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            for role in ("user", "admin"):
                said = subprocess.run([os.path.join(bin_dir, "switchyard"), "keys", "new", f"--name={role}1", f"--role={role}"],
                                      check=True, capture_output=True, text=True).stdout
                keys[role] = re.search(r"key:\s+(\S+)", said).group(1)
                file.write(re.search(r"line:\s+(.+)", said).group(1) + "\n")
        with server(bin_dir, f"--api_keys_file={path}") as (address, _), Browser(chromium) as browser:
            test = PageTest(browser, shots)
            browser.size(1280, 860)
            browser.open(address + "/")
            browser.wait("!document.getElementById('key-form').hidden", "it asks for a key")
            test.shot("key-1280")
            enter = ("document.getElementById('key').value = '{}';"
                     "document.getElementById('key-form').requestSubmit(); 0")
            browser.run(enter.format("wrong"))
            browser.wait("document.getElementById('key-hint').textContent.includes('does not know')", "a wrong key")
            browser.run(enter.format(keys["user"]))
            browser.wait("document.getElementById('state-text').textContent === 'Ready'", "the user's key")
            expect(browser.run("document.getElementById('key-form').hidden"), "the form goes")
            test.set_field("max_tokens", "20")
            test.ask("Hello")
            browser.wait(f"{IS_IDLE} && {READ_TURNS}.length === 2 && {READ_TURNS}[1].length > 0", "an answer")
            browser.run("document.getElementById('to-live').click(); 0")
            browser.wait("!document.getElementById('experts-error').hidden", "experts are not a user's")
            test.shot("live-user-1280")
            expect(browser.run("sessionStorage.length === 1 && localStorage.length === 0 && !document.cookie"),
                   "the key is in the tab's storage only")
            browser.run(f"sessionStorage.setItem('key', '{keys['admin']}'); location.reload(); 0")
            browser.wait("document.getElementById('experts-body') && !document.getElementById('experts-body').hidden",
                         "experts are an administrator's")


def main():
    chromium = find_chromium()
    if chromium is None:
        print("no chromium: the page was not tried in a browser")
        return 77
    bin_dir = sys.argv[1]
    shots = sys.argv[2] if len(sys.argv) > 2 else None
    if shots:
        os.makedirs(shots, exist_ok=True)
    test_page(chromium, bin_dir, shots)
    test_key(chromium, bin_dir, shots)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
