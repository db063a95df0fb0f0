"""gRPC in Python for a drill: an interpreter that has it, and the classes of one of our protobuf definitions."""

import hashlib
import importlib
import subprocess
import sys

from cluster import ROOT
from zookeeper_venv import cache, making, this_or_again

GRPC = "1.85.1"
DEFINITIONS = ROOT / "crates/atoll-client/proto"


def grpc_or_again():
    """Continues if gRPC can be imported; else starts the program anew in an interpreter that has it."""
    this_or_again("grpc_tools", f"grpc-{GRPC}", f"grpcio=={GRPC}", f"grpcio-tools=={GRPC}")


def table_service():
    """The modules of table.proto: messages, and the client."""
    return modules("atoll/v1/table")


def scalog_service():
    """The modules of scalog.proto: messages, and the client."""
    return modules("atoll/scalog/v1/scalog")


def keyspace_service():
    """The modules of keyspace.proto: messages, and the client."""
    return modules("atoll/keyspace/v1/keyspace")


def modules(name):
    """The modules that are generated from one definition, which is named without its ending."""
    definition = DEFINITIONS / f"{name}.proto"
    folder = cache() / f"grpc-{GRPC}-{hashlib.sha256(definition.read_bytes()).hexdigest()[:16]}"
    with making(folder.name):
        if not (folder / f"{name}_pb2_grpc.py").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            out = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
            subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{DEFINITIONS}", *out, definition], check=True)
    sys.path.insert(0, str(folder))
    return tuple(importlib.import_module(f"{name}_pb2{kind}".replace("/", ".")) for kind in ("", "_grpc"))
