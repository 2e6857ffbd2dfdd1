"""What a second worker brings: units in a second with 2 workers against 1, one thread each.

    python benchmarks/workers.py                    # about two minutes on two cores
    python benchmarks/workers.py --workers 1 4 8    # on a larger machine; the first is what others are compared with

A unit is a number of forward passes of a network, as in a study. The counts take turns, and each round gives a ratio;
the figure is their median. The clock runs from the moment all workers have answered once until a worker may run dry.
The aim is 1.7 times for two workers.
"""

from __future__ import annotations

import argparse
import statistics
import time

from units import METRICS, shards

from egcam.studies.engines import Job, make_engine


def rate(engine: str, workers: int, job: Job, seconds: float) -> float:
    """Units in a second, counted while all workers are at work."""
    done, start = 0, 0.0
    running = make_engine(engine, workers=workers).outcomes(job, shards(10**6, 2))
    warm_up = 4 * workers
    for outcomes in running:
        now = time.perf_counter()
        if warm_up > 0:
            warm_up -= len(outcomes)
            start = now
            continue
        done += len(outcomes)
        if now - start >= seconds:
            running.close()
            return done / (now - start)
    raise AssertionError("there are always more units")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="local", choices=["local", "ray"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="for which each count runs in a round")
    parser.add_argument("--model", default="resnet18")
    options = parser.parse_args()
    job = Job("units:forward", {"model": options.model, "passes": 2}, METRICS, threads=1, device="cpu")
    rates: dict[int, list[float]] = {count: [] for count in options.workers}
    for round_number in range(options.rounds):
        for count in options.workers:
            rates[count].append(rate(options.engine, count, job, options.seconds))
        said = ", ".join(f"{rates[count][-1]:.2f}/s with {count}" for count in options.workers)
        print(f"round {round_number + 1}: {said}", flush=True)
    base = rates[options.workers[0]]
    for count in options.workers[1:]:
        ratios = [more / one for more, one in zip(rates[count], base, strict=True)]
        print(f"{options.engine}, {count} workers against {options.workers[0]}: {statistics.median(ratios):.2f}x")


if __name__ == "__main__":
    main()
