"""Settings that change while the engine runs."""

import json
from pathlib import Path

import pytest

from pagoda_engine.serving.errors import StartError
from pagoda_engine.serving.live import Live
from tests.engine.serving.conftest import eventually


def write(folder: Path, text: str) -> None:
    new = folder / "new"
    new.write_text(text)
    new.rename(folder / "live.json")


def text_of(idle_seconds: float) -> str:
    return json.dumps({"generation": 1, "idleSeconds": idle_seconds, "sharedPrefixes": []})


def test_without_a_folder_the_defaults_hold() -> None:
    assert Live(None).settings().idle_seconds == 20.0


async def test_a_new_version_is_used_and_a_bad_one_is_logged_and_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, text_of(5))
    live = Live(tmp_path)
    assert live.settings().idle_seconds == 5.0
    async with live.following():
        write(tmp_path, text_of(7))
        await eventually(lambda: live.settings().idle_seconds == 7.0)
        write(tmp_path, text_of(-1))
        await eventually(lambda: any("idleSeconds" in message for message in caplog.messages))
        assert live.settings().idle_seconds == 7.0
        write(tmp_path, text_of(9))
        await eventually(lambda: live.settings().idle_seconds == 9.0)


@pytest.mark.parametrize("text", ["{", text_of(0)])
def test_an_engine_does_not_start_with_a_file_that_is_wrong(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    with pytest.raises(StartError, match=r"live|idleSeconds"):
        Live(tmp_path)
