"""Turn the results of the studies in `benchmarks/studies` into the pages of `docs/results`.

    export EGCAM_DATA=…                                     # the images and weights the study files name
    egcam study run benchmarks/studies/reduced-main.toml --out results/main
    python benchmarks/results.py results/main               # writes docs/results/main/

A page is the study's own report in Markdown with its figures, headed by the command it comes from.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from PIL import Image

from egcam.studies import Store, write_report

PAGES = Path(__file__).parent.parent / "docs" / "results"
_WIDEST = 1400


def page(folder: Path, name: str) -> Path:
    """Write the page of a study's results, and return where."""
    study = Store(folder).manifest.study["name"]
    target = PAGES / name
    shutil.rmtree(target, ignore_errors=True)
    (target / "figures").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch)
        write_report(folder, report)
        text = (report / "report.md").read_text(encoding="utf-8")
        for file in sorted(report.glob("figures/*.png")):
            text = text.replace(f"figures/{file.name}", f"figures/{_copied(file, target / 'figures').name}")
        for file in ("scores.csv", "summary.csv"):
            shutil.copy(report / file, target / file)
    title, _, rest = text.partition("\n")
    made = f"\nMade by `egcam study run benchmarks/studies/{study}.toml` and `python benchmarks/results.py`.\n"
    (target / "index.md").write_text(title + "\n" + made + rest, encoding="utf-8")
    return target


def _copied(file: Path, folder: Path) -> Path:
    """Maps over photographs become JPEGs: a tenth of the size, and nobody measures colours in them."""
    if not file.name.startswith("examples"):
        shutil.copy(file, folder / file.name)
        return folder / file.name
    image = Image.open(file).convert("RGB")
    image.thumbnail((_WIDEST, 10 * _WIDEST))
    image.save(folder / f"{file.stem}.jpg", quality=85)
    return folder / f"{file.stem}.jpg"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="folders of results")
    for given in parser.parse_args().results:
        print(page(given, given.name))
