"""The fused kernels, in Triton's interpreter, against torch: every byte, for every kind of page.

Triton decides when a kernel is defined whether it is interpreted, so they run in a process of their own. There a codec
is told that its pages lie on a GPU: all of its way is taken then, with what is not tame and what is broken.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.engine.model.codecs.pages import DTYPES, KINDS, codec_of, decoded, encoded, page_of

_RUN_FUSED = """
import sys, torch
from pagoda_engine.model.codecs import int4, int8
from tests.engine.model.codecs.pages import codec_of, decoded, encoded
int4.is_fused = int8.is_fused = lambda pages: True
found = {}
for key, batch in torch.load(sys.argv[1] + "/pages").items():
    codec = codec_of(*key[:3])
    payloads = encoded(codec, batch)
    found[key] = payloads, decoded(codec, payloads, batch)
assert {"pagoda_engine.model.codecs.triton_int4", "pagoda_engine.model.codecs.triton_int8"} <= set(sys.modules)
torch.save(found, sys.argv[1] + "/found")
"""


@pytest.mark.timeout(600)
def test_fused_kernels_write_and_read_the_bytes_that_torch_does(tmp_path: Path) -> None:
    every = {}
    for name in ("Int4", "Int8"):
        for kv_dtype in DTYPES:
            # No power of two in sight, so that the kernels' tiles are wider than the page.
            shape = (1, 1, 5, 6)
            batch = torch.cat([page_of(kind, 25, kv_dtype, shape) for kind in KINDS])
            every[name, kv_dtype, shape, "tame"] = batch[[0, 2, 5, 8]]
            wild = batch[[0, 3, 9]].clone()
            wild[0, 0, 1, 0, 2, 3] = float("nan")
            wild[1, 0, 0, 0, 1, 2] = float("-inf")
            wild[2, 0, 1, 0, 0, 0] = 2.0**125
            every[name, kv_dtype, shape, "wild"] = wild
        every[name, "Float32", (2, 2, 2, 4), "deep"] = page_of("plain", 1, "Float32", (2, 2, 2, 4))
    torch.save(every, tmp_path / "pages")
    subprocess.run(
        [sys.executable, "-c", _RUN_FUSED, str(tmp_path)], env=os.environ | {"TRITON_INTERPRET": "1"},
        timeout=500, check=True,
    )  # fmt: skip
    found = torch.load(tmp_path / "found")
    for key, batch in every.items():
        codec = codec_of(*key[:3])
        payloads, pages = found[key]
        expected = encoded(codec, batch)
        assert torch.equal(payloads, expected), key
        assert torch.equal(pages.nan_to_num(-1.0), decoded(codec, expected, batch).nan_to_num(-1.0)), key
