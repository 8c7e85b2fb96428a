"""Settings that change while a pool runs: one JSON file that engines and routers follow.

{"generation": 1, "idleSeconds": 20, "sharedPrefixes": ["You are a helpful assistant."]}
"""

import json
from dataclasses import dataclass

LIVE_FILE = "live.json"
MAX_SHARED_PREFIXES = 256
MAX_PREFIX_CHARACTERS = 1 << 20
_FIELDS = frozenset({"generation", "idleSeconds", "sharedPrefixes"})


class LiveSettingsError(ValueError):
    """The file is not what it should be; the message names the field."""


@dataclass(frozen=True)
class LiveSettings:
    """What can change without a restart."""

    generation: int = 0
    """The pool's generation at which one of the others last changed; 0: no file has said one."""
    idle_seconds: float = 20.0
    """A session that nobody touched for so long is idle."""
    shared_prefixes: tuple[str, ...] = ()
    """Public texts: KV of a prompt that starts with one is shared by all tenants, as far as the text goes."""


def parse_live(text: str) -> LiveSettings:
    """Read the file.

    Raises:
        LiveSettingsError: naming the field that is wrong.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LiveSettingsError(f"live settings: not JSON: {error}") from error
    if not isinstance(document, dict) or set(document) != _FIELDS:
        raise LiveSettingsError(f"live settings: expected exactly the fields {', '.join(sorted(_FIELDS))}")
    generation, idle, prefixes = document["generation"], document["idleSeconds"], document["sharedPrefixes"]
    if not isinstance(generation, int) or isinstance(generation, bool) or not 1 <= generation < 2**63:
        raise LiveSettingsError("generation: expected a whole number of at least 1")
    if not isinstance(idle, (int, float)) or isinstance(idle, bool) or not 0 < idle < 1e9:
        raise LiveSettingsError("idleSeconds: expected a number of seconds above 0")
    if not isinstance(prefixes, list) or len(prefixes) > MAX_SHARED_PREFIXES:
        raise LiveSettingsError(f"sharedPrefixes: expected a list of at most {MAX_SHARED_PREFIXES} texts")
    for index, prefix in enumerate(prefixes):
        if not isinstance(prefix, str) or not 1 <= len(prefix) <= MAX_PREFIX_CHARACTERS:
            raise LiveSettingsError(
                f"sharedPrefixes[{index}]: expected a text of 1 to {MAX_PREFIX_CHARACTERS} characters"
            )
    return LiveSettings(generation, float(idle), tuple(prefixes))
