"""What the kernel writes about memory and cores is read as the kernel means it."""

from pathlib import PurePosixPath

import pytest

from pagoda_cli.machine import (
    GroupMemory,
    parse_available,
    parse_cpu_quota,
    parse_groups,
    parse_limit,
    parse_statistic,
    usable_cores,
)


def test_available_memory_is_read_in_bytes() -> None:
    meminfo = "MemTotal:       24683748 kB\nMemFree:        1 kB\nMemAvailable:   23000000 kB\n"
    assert parse_available(meminfo) == 23000000 * 1024
    assert parse_available("MemTotal: 5 kB\n") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max\n", None),
        ("9223372036854771712\n", None),
        (None, None),
        ("", None),
        ("536870912\n", 536870912),
    ],
)
def test_no_limit_is_told_from_a_limit_in_both_versions(text: str | None, expected: int | None) -> None:
    assert parse_limit(text) == expected


@pytest.mark.parametrize(
    ("cpu_max", "quota", "period", "cores"),
    [
        ("max 100000\n", None, None, None),
        ("150000 100000\n", None, None, 1.5),
        (None, "-1\n", "100000\n", None),
        (None, "400000\n", "100000\n", 4.0),
        (None, None, None, None),
    ],
)
def test_cpu_quotas_of_both_versions(
    cpu_max: str | None, quota: str | None, period: str | None, cores: float | None
) -> None:
    assert parse_cpu_quota(cpu_max, quota, period) == cores


@pytest.mark.parametrize(
    ("allowed", "quota", "cores"), [(8, None, 8), (8, 2.0, 2), (8, 1.5, 1), (8, 0.2, 1), (2, 16.0, 2)]
)
def test_the_smaller_of_affinity_and_quota_counts_and_never_nothing(
    allowed: int, quota: float | None, cores: int
) -> None:
    assert usable_cores(allowed, quota) == cores


def test_groups_of_both_versions_are_found() -> None:
    groups = parse_groups("4:memory:/kubepods/a\n3:cpu,cpuacct:/kubepods/b\n0::/user.slice/c\n")
    assert groups["memory"] == PurePosixPath("/kubepods/a")
    assert groups["cpu"] == groups["cpuacct"] == PurePosixPath("/kubepods/b")
    assert groups[""] == PurePosixPath("/user.slice/c")


def test_page_cache_of_a_group_can_be_had_and_its_availability_is_never_negative() -> None:
    assert GroupMemory(limit_bytes=100, usage_bytes=80, reclaimable_bytes=30).available_bytes == 50
    assert GroupMemory(limit_bytes=100, usage_bytes=120, reclaimable_bytes=0).available_bytes == 0
    assert GroupMemory(limit_bytes=100, usage_bytes=10, reclaimable_bytes=30).available_bytes == 100


def test_a_statistic_is_found_by_its_whole_name() -> None:
    text = "inactive_file 7\ntotal_inactive_file 9\n"
    assert parse_statistic(text, "inactive_file") == 7
    assert parse_statistic(text, "total_inactive_file") == 9
    assert parse_statistic(text, "file") == 0
