"""How the strings of a manifest look: names, paths, labels. Each reads one kind and says what would be right."""

from pagoda_protocol.pool.quantities import MEBI
from pagoda_protocol.pool.reader import Reader, size, text

MAX_SIZE = 2**50  # 1 Pi
GIVE_SIZE = 'give a size such as "8Gi"'
MODEST_SIZE = size(64 * MEBI, MAX_SIZE)

_WORD = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT = rf"{_WORD}(\.{_WORD})*"
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PORT = r"([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
_CONTROL = r"\x00-\x1f\x7f\ud800-\udfff"
_SEGMENT = rf"\.?[^/:.{_CONTROL}][^/:{_CONTROL}]*"  # of a path; never "." or ".."

OBJECT_NAME = text(_OBJECT, "a name of lower-case letters, digits, dashes and dots", 253)
SHORT_NAME = text(_WORD, "a name of lower-case letters, digits and dashes", 63)
MODEL_NAME = text(
    r"[A-Za-z0-9][-A-Za-z0-9._/:@+]*", "letters, digits and any of - . _ / : @ +, a letter or digit first", 253
)
DISTRIBUTION = text(r"[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?", "the name of an installed Python package", 214)
ABSOLUTE_PATH = text(rf"/[^{_CONTROL}]*", "an absolute path", 4096)
MOUNT_PATH = text(rf"(/{_SEGMENT})+", 'an absolute path without ":", "//" and "..", such as "/models"', 1024)
RELATIVE_PATH = text(rf"{_SEGMENT}(/{_SEGMENT})*", 'a path without ":", "//" and "..", no slash first', 1024)
IMAGE = text(r"[A-Za-z0-9][-A-Za-z0-9._/:@]*", "an image reference", 512)
HOST_PORT = text(
    rf"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):{_PORT}", 'host:port, such as "mc-0:11211"', 260
)
LABEL_KEY = text(rf"({_OBJECT}/)?{_LABEL}", 'a label\'s key, such as "team" or "example.com/team"', 317)
LABEL_VALUE = text(rf"({_LABEL})?", "up to 63 letters, digits, dashes, underscores and dots", 63)
DATA_KEY = text(r"\.?[-_A-Za-z0-9][-._A-Za-z0-9]*", "a key of letters, digits, dashes, underscores and dots", 253)
DRIVER_NAME = text(_OBJECT, "a driver's name, such as secrets-store.csi.k8s.io", 63)
VARIABLE_NAME = text(r"[A-Za-z_][A-Za-z0-9_]*", "a name of letters, digits and underscores, no digit first", 253)


def secret_reference(reader: Reader, key: str) -> str | None:
    """Read `{name: …}` of a Secret in the pool's namespace, None where it is absent."""
    return reader.optional_child(key, lambda secret: secret.required("name", OBJECT_NAME, "name the Secret"))
