"""The long form: a million operations, or as many as PAGODA_FAULT_OPERATIONS says.

make faults                                  a new seed
PAGODA_FAULT_SEED=… make faults              the same sequences of calls and faults again
"""

import os
import secrets
import sys

from tests.faults.mischief import names_of_all
from tests.faults.storm import Outcome, Storm
from tests.faults.world import running_world

OPERATIONS = 1_000_000
LONGEST_SECONDS = 6 * 3600.0
FULL_RUN_OPERATIONS = 100_000  # from here on every kind of fault must have been done


def show(outcome: Outcome) -> None:
    rate = outcome.num_operations / outcome.seconds
    sys.stdout.write(
        f"{outcome.num_operations:>9} operations, {rate:.0f}/s, {outcome.faults.total()} faults, "
        f"{outcome.num_calms} calms, {len(outcome.wrongs)} wrong\n"
    )
    sys.stdout.flush()


def main() -> int:
    """Run, and say what was done and found."""
    wanted = int(os.environ.get("PAGODA_FAULT_OPERATIONS", OPERATIONS))
    seed = os.environ.get("PAGODA_FAULT_SEED") or secrets.token_hex(4)
    sys.stdout.write(f"faults: seed {seed}, {wanted} operations\n")
    with running_world() as world:
        try:
            outcome = Storm(world, seed, show).run(wanted, LONGEST_SECONDS)
        except AssertionError as error:
            sys.stdout.write(f"FAILED (PAGODA_FAULT_SEED={seed}): {error}\n{world.describe()}\n")
            return 1
        for title, counts in (("calls", outcome.counts), ("faults", outcome.faults)):
            sys.stdout.write(f"{title}: {dict(sorted(counts.items()))}\n")
        show(outcome)
        missing = names_of_all() - set(outcome.faults) if wanted >= FULL_RUN_OPERATIONS else set()
        for line in [*outcome.wrongs, *(f"never done: {name}" for name in sorted(missing))]:
            sys.stdout.write(f"FAILED (PAGODA_FAULT_SEED={seed}): {line}\n")
        return 1 if outcome.wrongs or missing else 0


if __name__ == "__main__":
    sys.exit(main())
