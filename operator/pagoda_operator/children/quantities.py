"""Quantities as the API server stores them, so that what was rendered and what is observed are the same text."""

from pagoda_protocol.pool.quantities import MEBI, format_bytes

_DECIMAL_UNITS = ("", "k", "M", "G", "T", "P", "E")


def memory(num_bytes: int) -> str:
    """Write bytes: in binary units where they are whole, else in decimal ones."""
    text = format_bytes(num_bytes)
    if not text.isdigit() or num_bytes == 0:
        return text
    power = 0
    while num_bytes % 1000 == 0:
        num_bytes, power = num_bytes // 1000, power + 1
    return f"{num_bytes}{_DECIMAL_UNITS[power]}"


def cpu(millicores: int) -> str:
    """Write thousandths of a core: whole cores without a unit."""
    return f"{millicores}m" if millicores % 1000 else str(millicores // 1000)


def whole_mebi(num_bytes: int) -> int:
    """Round derived bytes up to whole mebibytes."""
    return -(-num_bytes // MEBI) * MEBI
