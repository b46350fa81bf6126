"""How the package is built: its version is the project's, and its stubs are made of the project's .proto files.

In the project's tree both are two folders above; a source distribution has copies of the .proto files, and its version in PKG-INFO.
SWITCHYARD_WHEEL_BIN_DIR=DIR puts the programs of that folder into the wheel, which is then one for this platform.
"""

import os
import re
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PROTOS = ["inference", "admin", "training"]
PROGRAMS = ["switchyard", "switchyard-quantize", "switchyard-server", "switchyard-worker"]


def read_version(root: Path) -> str:
    """The version in the project's CMakeLists.txt, or the one of the source distribution."""
    for path, pattern in ((root / "PKG-INFO", r"^Version: (\S+)"), (root / "../../CMakeLists.txt", r"^project\(switchyard VERSION (\S+)")):
        if path.is_file():
            found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
            if found:
                return found.group(1)
    raise RuntimeError(f"no version: {root} has no PKG-INFO and is not clients/python of Switchyard's tree")


def find(root: Path, name: str) -> Path:
    """A file or folder of the project: a source distribution's own copy, or that in the tree."""
    for path in (root / name, root / "../.." / name):
        if path.exists():
            return path.resolve()
    raise RuntimeError(f"no {name} in {root}, which is not clients/python of Switchyard's tree")


def type_of_call(method: Any) -> str:
    """The type of a stub's attribute, as types-grpcio names it."""
    kind = "".join("Stream" if streams else "Unary" for streams in (method.client_streaming, method.server_streaming))
    request, response = ("_pb2." + name.rsplit(".", 1)[1] for name in (method.input_type, method.output_type))
    return f"grpc.{kind}MultiCallable[{request}, {response}]"


def repair_types(path: Path) -> None:
    """What `mypy --strict` does not take of the types that protoc writes: modules without types, maps of nothing, a field whose name is its type's."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^(from google\.rpc import .*)$", r"\1  # type: ignore[import-untyped]", text, flags=re.MULTILINE)
    text = re.sub(r"\b_Mapping\]", "_Mapping[str, _Any]]", text)
    text = re.sub(r"(: |_Optional\[)bytes\b", r"\1_builtins.bytes", text)
    path.write_text("import builtins as _builtins\nfrom typing import Any as _Any\n" + text, encoding="utf-8")


def write_service_types(folder: Path, descriptors: bytes) -> None:
    """Writes NAME_pb2_grpc.pyi, which grpcio-tools does not."""
    from google.protobuf import descriptor_pb2

    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        if not file.service:
            continue
        name = Path(file.name).stem
        lines = ["import grpc", f"from switchyard.v1 import {name}_pb2 as _pb2"]
        for service in file.service:
            lines += ["", f"class {service.name}Stub:", "    def __init__(self, channel: grpc.Channel) -> None: ..."]
            lines += [f"    {method.name}: {type_of_call(method)}" for method in service.method]
        (folder / f"{name}_pb2_grpc.pyi").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_stubs(protos: Path, out: Path) -> None:
    """Makes the package switchyard.v1 in the folder `out`: modules of messages and stubs, with their types."""
    import grpc_tools
    from grpc_tools import protoc

    (out / "switchyard/v1").mkdir(parents=True, exist_ok=True)
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    descriptors = out / "descriptors.pb"
    status = protoc.main(["protoc", f"-I{protos}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}",
                          f"--descriptor_set_out={descriptors}", *(f"switchyard/v1/{name}.proto" for name in PROTOS)])
    if status != 0:
        raise RuntimeError(f"protoc ended with {status}")
    for name in PROTOS:
        repair_types(out / f"switchyard/v1/{name}_pb2.pyi")
    write_service_types(out / "switchyard/v1", descriptors.read_bytes())
    descriptors.unlink()
    (out / "switchyard/v1/__init__.py").write_text('"""Messages and stubs of the API, made of proto/switchyard/v1/."""\n', encoding="utf-8")


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: "dict[str, Any]") -> None:
        metadata["version"] = read_version(Path(self.root))


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Makes stubs for wheels, copies the .proto files into source distributions."""

    def initialize(self, version: str, build_data: "dict[str, Any]") -> None:
        root = Path(self.root)
        protos = find(root, "proto")
        if self.target_name == "sdist":
            build_data["force_include"][str(find(root, "LICENSE"))] = "LICENSE"
            for name in PROTOS:
                build_data["force_include"][str(protos / f"switchyard/v1/{name}.proto")] = f"proto/switchyard/v1/{name}.proto"
            for name in ("status", "error_details"):
                build_data["force_include"][str(protos / f"google/rpc/{name}.proto")] = f"proto/google/rpc/{name}.proto"
            return
        if version == "editable":  # runs from the tree, so stubs are there, too (git ignores them)
            make_stubs(protos, root)
            return
        self.made = Path(tempfile.mkdtemp(prefix="switchyard-stubs-"))
        make_stubs(protos, self.made)
        build_data["force_include"][str(self.made / "switchyard/v1")] = "switchyard/v1"
        build_data["force_include"][str(find(root, "LICENSE"))] = "switchyard/LICENSE"
        programs = os.environ.get("SWITCHYARD_WHEEL_BIN_DIR")
        if programs:
            for name in PROGRAMS:
                build_data["force_include"][str(Path(programs, name).resolve(strict=True))] = f"switchyard/bin/{name}"
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def finalize(self, version: str, build_data: "dict[str, Any]", artifact_path: str) -> None:
        if hasattr(self, "made"):
            shutil.rmtree(self.made)
