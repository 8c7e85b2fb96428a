"""`python -m bench NAME [--quick]`: run one bench; its last line is one JSON object."""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

from bench.report import Result, publish

BENCHES = {
    "reuse": "TTFT of a repeated long prefix from each tier, against computing it",
    "early-reuse": "p50 TTFT of a burst on one prompt: blocks shared when complete, at request end, never",
    "reload": "TTFT of a returning history from RAM, disk and pool, against computing it",
    "overhead": "throughput with all tiers against without, nothing to reuse",
    "idle": "idle sessions that a small device carries with tiers and without, and how they come back",
    "multi-turn": "TTFT of conversations and of questions on shared documents, with tiers and without",
    "gate": "TTFT from a throttled or dead pool: weighed, always loaded, never loaded, no cache",
    "blackhole": "TTFT with a pool that never answers, against none",
    "lookup": "p99 of Lookup while stores run at full speed, against idle",
    "codecs": "bytes, speed and quality of each codec below the device",
    "pool": "set and get over the pool client against pymemcache",
    "restart": "how soon a new pool has its children, and 200 pools are looked after again by an operator started anew",
    "annotations": "what 1,000 engine pods cost the operator: its share of one core, and API writes",
    "eviction": "usable hits of the RAM tier's policy on four traces against LRU and the best possible cache",
}


def main() -> int:
    """Parse, run, publish."""
    lines = "\n".join(f"  {name:12} {what}" for name, what in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=f"benches:\n{lines}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=sorted(BENCHES), help="which bench; without: what there is")
    parser.add_argument("--quick", action="store_true", help="a short form: shows that it works, not what it gives")
    parser.add_argument("--results", type=Path, default=Path("bench/results"), help="folder for the table and plot")
    arguments = parser.parse_args()
    if arguments.name is None:
        parser.print_help()
        return 0
    module = importlib.import_module(f"bench.{arguments.name.replace('-', '_')}")
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as folder:
        result: Result = module.run(arguments.quick, Path(folder))
    publish(result, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
