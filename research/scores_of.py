"""Keep the scores of studies and of `egcam truth` beside the page they are behind, one small Parquet file for each.

python research/scores_of.py results/confirm-usual results/confirm-same       # writes research/scores/NAME.parquet

Scores of other images of the same study that are kept already stay (`research/halves.py --without` leaves such images
out of a further run); those of a study whose methods or networks have changed must be removed first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas

from egcam.studies import Results

SCORES = Path(__file__).parent / "scores"
KEPT = ["model", "method", "name", "metric", "value"]


def of_study(folder: str) -> pandas.DataFrame:
    table = Results.of(folder).frame[KEPT].rename(columns={"name": "image"})
    before = SCORES / f"{Path(folder).name}.parquet"
    if before.exists():
        table = pandas.concat([pandas.read_parquet(before), table])
        table = table.drop_duplicates(["model", "method", "image", "metric"], keep="last")
    for column in ("model", "method", "image", "metric"):
        table[column] = table[column].astype("category")
    table["value"] = table["value"].astype("float32")
    return table


def known_answers(folder: Path) -> pandas.DataFrame:
    """What `egcam truth` wrote."""
    table = pandas.read_csv(folder / "scores.csv")
    return table.astype({"method": "category", "test": "category", "image": "int32", "score": "float32"})


def main() -> None:
    SCORES.mkdir(exist_ok=True)
    for folder in sys.argv[1:]:
        table = known_answers(Path(folder)) if Path(folder, "scores.csv").exists() else of_study(folder)
        file = SCORES / f"{Path(folder).name}.parquet"
        table.to_parquet(file, index=False, compression="zstd")
        print(f"{file}: {len(table):,} scores, {file.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
