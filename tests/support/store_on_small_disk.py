"""Run on a disk of a few hundred kilobytes: fill it, free it, make it read-only; tell what happened as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from egcam.studies.records import Unit
from egcam.studies.store import Store, StoreError
from support.store_samples import sample_manifest, sample_outcome


def attempt(store: Store, image: int) -> str:
    try:
        store.write([sample_outcome(Unit("vgg16", "cam", image))])
    except StoreError as error:
        return str(error)
    return "written"


def main(disk: Path) -> None:
    store = Store(disk / "results")
    store.begin(sample_manifest())
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(100_000))
    image = 0
    while (full := attempt(store, image)) == "written":
        image += 1
    kept = len(store.done())
    leftovers = [path.name for path in (disk / "results" / "parts").iterdir() if path.suffix != ".parquet"]
    ballast.unlink()
    after = attempt(store, image)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    read_only = attempt(store, image + 1)
    try:
        with store.lock():
            locked = "locked"
    except StoreError as error:
        locked = str(error)
    print(
        json.dumps(
            {
                "written": image,
                "full": full,
                "kept": kept,
                "leftovers": leftovers,
                "after": after,
                "read_only": read_only,
                "locked": locked,
                "readable": len(Store(disk / "results").outcomes()),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
