"""Reports: differences when all is well, everything anew when not."""

import threading

from pagoda_engine.core.reports import Reporter
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.tiers import DigestRow, LoadReport
from tests.engine.core.bench import SETTINGS, Bench
from tests.engine.core.fake_tiers import FakeTiers

LOAD = LoadReport(1, 2, 3.0, 4.0, 5.0)
A, B, C = (bytes([number]) * 32 for number in range(3))


def reporter_of(tiers: FakeTiers, settings: EngineSettings = SETTINGS) -> Reporter:
    return Reporter(tiers, settings, lambda: LOAD)


def row(number: int) -> DigestRow:
    return DigestRow(bytes([number]) * 16, 16, A)


def test_only_differences_are_told_and_what_came_and_went_is_not():
    tiers = FakeTiers()
    reporter = reporter_of(tiers)
    reporter.added(A)
    assert reporter.flush()
    sent: list[tuple[list[bytes], list[bytes]]] = []
    report = tiers.report

    def note(rows, added, removed, *rest):
        sent.append((added, removed))
        report(rows, added, removed, *rest)

    tiers.report = note  # type: ignore[method-assign]
    reporter.added(B)
    reporter.removed(A)
    reporter.added(C)
    reporter.removed(C)
    assert reporter.flush()
    assert sent == [([B], [A])]
    assert tiers.load_reports[-1] == LOAD


def test_after_a_failed_report_all_is_told_again_and_what_is_gone_taken_back():
    tiers = FakeTiers()
    reporter = reporter_of(tiers)
    reporter.added(A)
    reporter.flush()
    reporter.added(B)
    reporter.added(C)
    reporter.digests([row(1)])
    tiers.is_failing = True
    assert not reporter.flush()  # and yet it told of B
    reporter.removed(B)
    reporter.removed(A)
    assert not reporter.flush()
    tiers.is_failing = False
    assert reporter.flush()
    assert tiers.told == {C}
    assert tiers.rows == {row(1).digest: row(1)}


def test_after_an_attach_all_is_told_anew():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers)
    bench.complete(range(20))
    bench.engine.report_digests([row(1), row(2)])
    reporter = bench.engine._below.reporter
    reporter.flush()
    assert len(tiers.told) == 5
    assert tiers.touched
    tiers.attach_anew()
    reporter.flush()
    assert tiers.told == {block.address for block in bench.engine._residency.table}
    assert set(tiers.rows) == {row(1).digest, row(2).digest}


def test_a_block_that_comes_back_while_its_removal_is_on_the_way_is_told_again():
    tiers = FakeTiers()
    reporter = reporter_of(tiers)
    reporter.added(A)
    reporter.flush()
    reporter.removed(A)
    report = tiers.report

    def report_and_add(*arguments):
        tiers.report = report
        report(*arguments)
        reporter.added(A)

    tiers.report = report_and_add  # type: ignore[method-assign]
    reporter.flush()
    reporter.flush()
    assert tiers.told == {A}


def test_remembered_rows_are_bounded():
    tiers = FakeTiers()
    reporter = reporter_of(tiers, EngineSettings(100, 16, 4, max_digest_rows=2))
    reporter.digests([row(number) for number in range(5)])
    reporter.flush()
    assert set(tiers.rows) == {row(3).digest, row(4).digest}


def test_the_thread_reports_what_comes_and_ends_with_a_last_report():
    tiers = FakeTiers()
    reporter = reporter_of(tiers, EngineSettings(100, 16, 4, report_seconds=0.01, load_report_seconds=0.05))
    told = threading.Event()
    report = tiers.report

    def note(*arguments):
        report(*arguments)
        told.set()

    tiers.report = note  # type: ignore[method-assign]
    reporter.start()
    assert told.wait(5)
    told.clear()
    reporter.added(A)
    assert told.wait(5)
    reporter.removed(A)
    reporter.added(B)
    reporter.stop(5)
    assert tiers.told == {B}
