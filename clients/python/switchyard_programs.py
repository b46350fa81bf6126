"""The console script `switchyard`: finds the server's programs, which are no Python, and becomes one of them.

`switchyard serve MODEL [flags]` is switchyard-server; any other command is one of the program `switchyard`, of the same name as this script.
It is no part of the package, whose import of gRPC would slow down every command.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Iterator, List, NoReturn, Optional, Tuple

BIN_DIR_VARIABLE = "SWITCHYARD_BIN_DIR"
_SYSTEM_DIRS = ("/usr/local/bin", "/usr/bin")  # where the Debian package and `cmake --install` put them

_HELP = """\
usage: switchyard serve MODEL [flags]    starts a server of a model's folder; flags are those of switchyard-server
       switchyard COMMAND ...            a command of the C++ program: generate, chat, status, train, bench ...
"""


class _NotFound(Exception):
    pass


def _is_this_script(path: Path) -> bool:
    """Whether it is a console script of this package, be it of another environment."""
    with open(path, "rb") as file:
        head = file.read(2048)
    return head.startswith(b"#!") and b"switchyard_programs" in head


def _places() -> Iterator[Tuple[str, Path]]:
    yield "in the package", Path(__file__).parent / "switchyard/bin"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield "on PATH", Path(folder)
    for folder in _SYSTEM_DIRS:
        yield "in " + folder, Path(folder)


def find_program(name: str) -> Path:
    """The program in the folder that SWITCHYARD_BIN_DIR names, else in the package, on PATH, or where packages put it."""
    chosen = os.environ.get(BIN_DIR_VARIABLE)
    if chosen:
        path = Path(chosen, name)
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise _NotFound(f"no program {name} in {chosen}, which {BIN_DIR_VARIABLE} names")
        return path
    looked: List[str] = []
    for where, folder in _places():
        path = folder / name
        if path.is_file() and os.access(path, os.X_OK) and not _is_this_script(path):
            return path
        if where not in looked:
            looked.append(where)
    raise _NotFound(
        f"no program {name}: not {', '.join(looked)}, and {BIN_DIR_VARIABLE} is not set.\n"
        "This package is the client; the programs come with Switchyard's Debian package, its container, or a build of its tree:\n"
        f"  deploy/build.sh switchyard-server switchyard-worker switchyard && export {BIN_DIR_VARIABLE}=$PWD/build/release/bin")


def serve_arguments(arguments: List[str]) -> List[str]:
    """Flags of switchyard-server: a first argument that is no flag is the model's folder."""
    if arguments and not arguments[0].startswith("-"):
        if any(a.split("=", 1)[0] in ("--model", "-model") for a in arguments[1:]):
            raise _NotFound(f"the model is given twice: {arguments[0]} and --model")
        return ["--model=" + arguments[0], *arguments[1:]]
    return arguments


def _become(path: Path, arguments: List[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [str(path), *arguments])


def main(argv: Optional[List[str]] = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if arguments and arguments[0] == "serve":
            _become(find_program("switchyard-server"), serve_arguments(arguments[1:]))
        if not arguments or arguments[0] in ("-h", "--help", "help") and len(arguments) == 1:
            print(_HELP)
        _become(find_program("switchyard"), arguments)
    except _NotFound as error:
        print(f"switchyard: {error}", file=sys.stderr)
    except OSError as error:
        print(f"switchyard: {error.filename}: cannot be started: {error.strerror}", file=sys.stderr)
    return 2
