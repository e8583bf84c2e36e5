"""The generated code needs only grpcio, protobuf and googleapis-common-protos."""

from __future__ import annotations

import subprocess
import sys

IMPORT_ALL = """
import importlib, pkgutil, sys
import parley.v1
for module in pkgutil.iter_modules(parley.v1.__path__):
    generated = importlib.import_module("parley.v1." + module.name)
    if module.name.endswith("_pb2"):
        print(module.name, *(file.name for file in generated.DESCRIPTOR.dependencies))
"""


def test_stubs_import_no_other_package() -> None:
    """The stubs do not import the rules of buf/validate, which the protos import."""
    listing = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], check=True, capture_output=True, text=True
    ).stdout
    imports = {name: files for name, *files in map(str.split, listing.splitlines())}
    assert {"message_pb2", "agent_service_pb2", "conversation_service_pb2"} <= imports.keys()
    foreign = {
        file
        for files in imports.values()
        for file in files
        if not file.startswith(("parley/v1/", "google/protobuf/", "google/rpc/"))
    }
    assert not foreign
