"""The stubs that are checked in are those that the proto file gives."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path("pagoda_protocol", "tier")
STUBS = ("tier_pb2.py", "tier_pb2.pyi", "tier_pb2_grpc.py", "tier_pb2_grpc.pyi")


def generate(target):
    outputs = [f"--{kind}_out={target}" for kind in ("python", "mypy", "grpc_python", "mypy_grpc")]
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        "protocol",
        *outputs,
        str("protocol" / FOLDER / "tier.proto"),
    ]
    # The compiler looks for the mypy plugins on PATH, and they are installed beside this Python.
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)


def test_the_stubs_are_generated_from_the_proto_file_as_it_stands(tmp_path):
    generate(tmp_path)
    for name in STUBS:
        fresh, checked_in = (folder / FOLDER / name for folder in (tmp_path, ROOT / "protocol"))
        assert fresh.read_text() == checked_in.read_text(), f"{name} is stale: run `make generate`"


def test_every_number_of_the_tiers_is_frozen():
    from pagoda_protocol.tier import tier_pb2

    assert dict(tier_pb2.TierName.items()) == {
        "TIER_NAME_UNSPECIFIED": 0,
        "TIER_NAME_RAM": 2,
        "TIER_NAME_DISK": 3,
        "TIER_NAME_POOL": 4,
    }
