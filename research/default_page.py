"""Write docs/results/default.md and the table of known answers from the scores kept in research/scores.

    python research/default_page.py              # and research/tables.md: the means of every method

Nothing on the page is put together by hand; its first paragraphs are research/pages/default.md. The table of known
answers goes into README.md and docs/index.md, between two marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas
from score_tables import (
    FORMER,
    OURS,
    SCORES,
    TRUTH,
    Standing,
    all_standings,
    header,
    marked,
    not_ahead,
    scores,
    standings_of,
    tables_of_means,
    verdicts,
)

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "default.md"
TABLES = HERE / "tables.md"
LANDING = (HERE.parent / "README.md", HERE.parent / "docs" / "index.md")
MARKS = "<!-- known answers: written by research/default_page.py -->\n", "<!-- end of known answers -->"
JUDGED = "slope-cam, 16"  # as it is by default
USUAL = "Insertion-deletion and other metrics, each method at its usual layer"
AT_ITS_LAYER = "All methods at the default's layer"
QUESTIONS = {  # the files of scores, whose mean stands beside the default's, and what to know
    USUAL: (
        ("confirm-usual", "confirm-vgg", "confirm-cifar", "confirm-vit"),
        "grad-cam",
        "",
    ),
    AT_ITS_LAYER: (
        ("confirm-same", "confirm-same-cifar", "confirm-same-vit"),
        "hires-cam",
        "",
    ),
    "Grids of four images": (
        ("confirm-grids", "confirm-grids-cifar"),
        "grad-cam",
        "The share of heat in the cell that shows the explained class, each method at its usual layer "
        "(`research/grids.py`).\n",
    ),
    "Steadiness under noise": (
        ("confirm-sensitivity", "confirm-sensitivity-cifar"),
        "grad-cam",
        "No controls here: a map that never changes is perfectly steady.\n",
    ),
}
LANDING_TESTS = ("walls", "gridpg", "patch", "shapes", "unit+", "cells")
LANDING_METHODS = {
    "slope-cam": "**SlopeCAM**",
    "hires-cam": "HiResCAM",
    "eigen-grad-cam": "EigenGradCAM",
    "layer-cam": "LayerCAM",
    "xgrad-cam": "XGradCAM",
    "ablation-cam": "Ablation-CAM",
    "score-cam": "Score-CAM",
    "grad-cam": "Grad-CAM",
    "grad-cam++": "Grad-CAM++",
    "centre": "a blob in the centre",
}
NETWORKS = {  # as the tables of cells name them
    "alexnet": "AlexNet",
    "efficientnet-lite0": "EfficientNet-Lite0",
    "mobilenet_v2": "MobileNetV2",
    "resnet20": "ResNet-20 (CIFAR-10)",
    "resnet56": "ResNet-56 (CIFAR-10)",
    "squeezenet1_1": "SqueezeNet 1.1",
    "vgg16": "VGG-16",
    "vit": "ViT (CIFAR-10)",
    "mean_vit": "ViT without class token (CIFAR-10)",
}


def cells() -> dict[str, pandas.DataFrame]:
    """Images x methods for each network: correlations with the Shapley values of the layer's cells."""
    table = pandas.concat([pandas.read_parquet(file) for file in sorted((SCORES / "shapley").glob("*.parquet"))])
    networks = {
        label: table[table.model == name].pivot(index="image", columns="method", values="pearson")
        for name, label in NETWORKS.items()
    }
    return {label: values.dropna() for label, values in networks.items() if JUDGED in values}


def rivals(values: pandas.DataFrame) -> list[str]:
    """The methods that are not SlopeCAM with other references or in its former form."""
    return [name for name in values if not name.startswith(("slope-cam", FORMER, "another referee"))]


def standing_in_cells(values: pandas.DataFrame) -> Standing:
    """Where the default stands among the other methods on one network."""
    return standings_of({"cells": values[[JUDGED, *rivals(values)]]}, {"cells": True}, JUDGED)["cells"]


def agreement() -> Iterator[str]:
    """A row for each network: how SlopeCAM, its former form and the next method agree with the Shapley values."""
    shown = {
        "n = 8": "slope-cam, 8",
        "n = 16": JUDGED,
        "n = 32": "slope-cam, 32",
        "64 of the data": "slope-cam, data, 64",
    }
    shown |= {FORMER: FORMER, "HiResCAM": "hires-cam"}
    yield from header(["network", "images", *shown, "next method", "n = 16, corrected", "n = 16 stands"])
    for label, values in cells().items():
        means = values.mean()
        next_one = means[rivals(values)].idxmax()
        agreed = means["another referee"]
        corrected = means[JUDGED] / (2 * agreed / (1 + agreed)) ** 0.5
        figures = [f"{means[name]:.3f}" for name in shown.values()]
        figures += [f"{means[next_one]:.3f} {next_one}", f"{corrected:.2f}", marked(standing_in_cells(values).word)]
        yield f"| {label} | {len(values)} | {' | '.join(figures)} |"
    yield ""


def known_answer_scores() -> pandas.DataFrame:
    """The scores of `egcam truth`: method, test, image, score."""
    return pandas.read_parquet(SCORES / "truth.parquet").astype({"score": "float64"})


def standings_in_known_answers() -> dict[str, Standing]:
    """Where the default stands in each test of `egcam truth`."""
    columns = {}
    for test, part in known_answer_scores().groupby("test", sort=False, observed=True):
        columns[str(test)] = part.pivot(index="image", columns="method", values="score").dropna(axis=1)
    return standings_of(columns, {test: test != "walls" for test in columns})


def landing() -> Iterator[str]:
    """The known answers that fit a first page: ten methods, one of them a control, and six tests."""
    average = known_answer_scores().pivot_table(index="method", columns="test", values="score", observed=True)
    yield "| | " + " | ".join(f"{test} {'↓' if test == 'walls' else '↑'}" for test in LANDING_TESTS) + " |"
    yield "|---|" + "---|" * len(LANDING_TESTS)
    for method, label in LANDING_METHODS.items():
        figures = " | ".join(f"{average.loc[method, test]:.2f}" for test in LANDING_TESTS)
        yield f"| {label} | {figures} |"


def questions() -> dict[str, pandas.DataFrame]:
    """The scores behind each question but the first, of networks that today's default was measured on."""
    found = {}
    for question, (names, _, _) in QUESTIONS.items():
        table = pandas.concat([scores(name) for name in names])
        if question == AT_ITS_LAYER:  # the default's maps are the same
            usual = pandas.concat([scores(name) for name in QUESTIONS[USUAL][0]])
            usual = usual[(usual.method == OURS) & usual.model.isin(table.model.unique())]
            table = pandas.concat([table, usual])
        measured = table[table.method == OURS].model.unique()
        if len(measured):
            found[question] = table[table.model.isin(measured)]
    return found


def truth_as_map() -> Iterator[str]:
    """The Shapley values judged as a map, beside maps of the same layer."""
    table = pandas.concat([pandas.read_parquet(file) for file in sorted((SCORES / "truth-as-map").glob("*.parquet"))])
    yield from verdicts(table.assign(model=table.model.map(NETWORKS)), "hires-cam", TRUTH)


def page() -> str:
    """What is not ahead, then each question."""
    asked = questions()
    primary = {label: {"cells": standing_in_cells(values)} for label, values in cells().items()}
    found = {
        "Shapley values of cells": primary,
        **{question: all_standings(table) for question, table in asked.items()},
        "Tests with a known answer": {"`egcam truth`": standings_in_known_answers()},
    }
    parts = [(HERE / "pages" / "default.md").read_text(encoding="utf-8"), "## Where it is not ahead\n"]
    parts += [*not_ahead(found), "## Against the Shapley values of the layer's cells\n", _CELLS, *agreement()]
    for question, table in asked.items():
        _, against, text = QUESTIONS[question]
        parts += [f"## {question}\n", *([text] if text else []), *verdicts(table, against)]
    parts += ["## What the truth itself scores\n", _TRUTH, *truth_as_map()]
    return "\n".join(parts).rstrip() + "\n"


def tables() -> str:
    """The means of every method."""
    parts = ["# The means of every method\n\nWritten by `research/default_page.py`.\n"]
    for question, table in questions().items():
        parts += [f"## {question}\n", *tables_of_means(table)]
    return "\n".join(parts).rstrip() + "\n"


_CELLS = """\
Pearson correlation of signed maps with the Shapley value of each cell: the mean change of the score when the cell's
activations replace those of a reference, over random orders of the cells (`egcam.truth.cell_shapley`). The values are
the mean of two referees, each with orders and images of the data of its own that no map has seen. "Corrected" is n = 16
divided by how well the two referees know the truth: with q their agreement, sqrt(2 q / (1 + q)). "64 of the data":
references are 64 other images of the data, all else has the package's photographs.
"""
_TRUTH = """\
The Shapley values taken as a map, rectified and enlarged (`research/truth_as_map.py`): the truth's mean / HiResCAM's,
and where the truth stands. A metric by which a method is ahead of the truth rewards something else than being right.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    TABLES.write_text(tables(), encoding="utf-8")
    for file in LANDING:
        text = file.read_text(encoding="utf-8")
        assert all(text.count(mark) == 1 for mark in MARKS), f"{file} must hold the two marks of the table"
        before, _, rest = text.partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        file.write_text("".join([before, MARKS[0], *(f"{line}\n" for line in landing()), MARKS[1], after]), "utf-8")
    print(PAGE, TABLES, *LANDING, sep="\n")


if __name__ == "__main__":
    main()
