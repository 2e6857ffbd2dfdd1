"""Turn the results of the studies in `research/studies` into the reports of `research/reports`.

    export EGCAM_DATA=…                                     # the images and weights the study files name
    egcam study run research/studies/reduced-main.toml --out results/main
    python research/reports_of.py results/main              # writes research/reports/main/

A page is the study's own report in Markdown with its figures, headed by the command it comes from. Left out are maps
over photographs, which are not ours to publish, and the scores image by image.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from pathlib import Path

from egcam.studies import Store, write_report

PAGES = Path(__file__).parent / "reports"


def page(folder: Path, name: str) -> Path:
    """Write the page of a study's results, and return where."""
    study = Store(folder).manifest.study["name"]
    target = PAGES / name
    shutil.rmtree(target, ignore_errors=True)
    (target / "figures").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch)
        write_report(folder, report)
        text = _without_photographs((report / "report.md").read_text(encoding="utf-8"))
        for file in report.glob("figures/*.png"):
            if file.name in text:
                shutil.copy(file, target / "figures" / file.name)
        text = text.replace("All scores: [scores.csv](scores.csv). ", "")
        shutil.copy(report / "summary.csv", target / "summary.csv")
    title, _, rest = text.partition("\n")
    made = f"\nMade by `egcam study run research/studies/{study}.toml` and `python research/reports_of.py`.\n"
    (target / "index.md").write_text(title + "\n" + made + rest, encoding="utf-8")
    return target


def _without_photographs(text: str) -> str:
    """The report without the figure of example maps and its caption."""
    return re.sub(r"!\[[^\n]*\]\(figures/examples-[^\n]*\)\n\n\*[^\n]*\*\n\n", "", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="folders of results")
    for given in parser.parse_args().results:
        print(page(given, given.name))
