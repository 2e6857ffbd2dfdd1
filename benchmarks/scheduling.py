"""What an engine adds to a unit: 10,000 units that take no time, and the driver's memory on the way.

    python benchmarks/scheduling.py                  # all engines, about a minute
    python benchmarks/scheduling.py --engines local  # without Ray

The clock starts with the first outcome, so that starting processes and importing torch do not count. The aim is 5 ms
for a unit at most and memory that stays flat.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator

import psutil
from units import METRICS, shards

from egcam.studies.engines import Job, make_engine

LOOKS = (0.1, 0.5, 1.0)


def megabytes() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def measure(name: str, workers: int, count: int, shard: int) -> Iterator[str]:
    job = Job("units:tiny", {}, METRICS, device="cpu")
    done, start, memory = 0, 0.0, []
    for outcomes in make_engine(name, workers=workers).outcomes(job, shards(count, shard)):
        if not done:
            start, first = time.perf_counter(), len(outcomes)
        done += len(outcomes)
        while len(memory) < len(LOOKS) and done >= LOOKS[len(memory)] * count:
            memory.append(megabytes())
    seconds = time.perf_counter() - start
    yield f"{name} ({workers})"
    yield f"{1000 * seconds / (done - first):.3f} ms"
    yield from (f"{size:.1f} MB" for size in memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["local", "ray"], choices=["local", "ray"])
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--shard", type=int, default=8, help="units in a shard")
    options = parser.parse_args()
    row = "{:<12}{:>12}" + "{:>12}" * len(LOOKS)
    print(row.format("engine", "per unit", *(f"at {look:.0%}" for look in LOOKS)))
    for name, workers in (("local", 1), ("local", 2), ("ray", 2)):
        if name in options.engines:
            print(row.format(*measure(name, workers, options.units, options.shard)), flush=True)


if __name__ == "__main__":
    main()
