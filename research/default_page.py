"""Write the tables of docs/results/index.md and of known answers from the scores kept in research/scores.

    python research/default_page.py              # and research/tables.md: the means of every method

Each table stands between two marks of its page. That of known answers is in README.md and docs/index.md.
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
PAGE = HERE.parent / "docs" / "results" / "index.md"
TABLES = HERE / "tables.md"
LANDING = (HERE.parent / "README.md", HERE.parent / "docs" / "index.md")
KNOWN = HERE.parent / "src" / "egcam" / "data" / "known_answers.md"  # for `egcam demo`
JUDGED = "slope-cam, 16"  # as it is by default
QUESTIONS = {  # mark on the page: the question, the files of its scores, and whose mean stands beside the default's
    "usual": (
        "each at its usual layer",
        ("confirm-usual", "confirm-vgg", "confirm-cifar", "confirm-vit"),
        "grad-cam",
    ),
    "same": ("all at the default's layer", ("confirm-same", "confirm-same-cifar", "confirm-same-vit"), "hires-cam"),
    "planted": ("planted patch, usual layers", ("confirm-planted", "confirm-planted-cifar"), "grad-cam"),
    "grids": ("grids, usual layers", ("confirm-grids", "confirm-grids-cifar"), "grad-cam"),
    "steady": ("steadiness", ("confirm-sensitivity", "confirm-sensitivity-cifar"), "grad-cam"),
}
LANDING_TESTS = ("walls", "gridpg", "patch", "shapes", "unit+", "cells")
LANDING_METHODS = {
    "slope-cam": "**SlopeCAM**",
    "expected-grad-cam": "Expected Grad-CAM",
    "hires-cam": "HiResCAM",
    "eigen-grad-cam": "EigenGradCAM",
    "layer-cam": "LayerCAM",
    "xgrad-cam": "XGradCAM",
    "ablation-cam": "Ablation-CAM",
    "score-cam": "Score-CAM",
    "grad-cam": "Grad-CAM",
    "grad-cam++": "Grad-CAM++",
    "mean-activation": "mean activation",
    "centre": "a blob in the centre",
}
NETWORKS = {  # as the tables of cells name them
    "alexnet": "AlexNet",
    "efficientnet-lite0": "EfficientNet-Lite0",
    "mobilenet_v2": "MobileNetV2",
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "squeezenet1_1": "SqueezeNet 1.1",
    "vgg16": "VGG-16",
    "vit": "ViT",
    "mean_vit": "ViT without class token",
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
    shown |= {FORMER: FORMER}
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
    """The known answers that fit a first page: twelve methods, two of them controls, and six tests."""
    average = known_answer_scores().pivot_table(index="method", columns="test", values="score", observed=True)
    yield "| | " + " | ".join(f"{test} {'↓' if test == 'walls' else '↑'}" for test in LANDING_TESTS) + " |"
    yield "|---|" + "---|" * len(LANDING_TESTS)
    for method, label in LANDING_METHODS.items():
        figures = " | ".join(f"{average.loc[method, test]:.2f}" for test in LANDING_TESTS)
        yield f"| {label} | {figures} |"


def questions() -> dict[str, pandas.DataFrame]:
    """The scores behind each question but the first; † where only the former default was measured."""
    found: dict[str, pandas.DataFrame] = {}
    for mark, (_, names, _) in QUESTIONS.items():
        table = pandas.concat([scores(name) for name in names]).astype({"model": str, "method": str})
        table["model"] = table.model.str.removesuffix(" (CIFAR-10)")
        if mark == "same":  # the default's maps are those at its usual layer
            ours = found["usual"][found["usual"].method == OURS]
            table = pandas.concat([table, ours[ours.model.isin(table.model.unique())]])
        before = ~table.model.isin(table[table.method == OURS].model.unique())
        table.loc[before, "method"] = table.method[before].replace({FORMER: OURS})
        table.loc[before, "model"] += "†"
        found[mark] = table
    return found


def truth_as_map() -> Iterator[str]:
    """The Shapley values judged as a map, beside maps of the same layer."""
    table = pandas.concat([pandas.read_parquet(file) for file in sorted((SCORES / "truth-as-map").glob("*.parquet"))])
    yield from verdicts(table.assign(model=table.model.map(NETWORKS)), "hires-cam", TRUTH)


def tables() -> dict[str, list[str]]:
    """The tables of the page by their marks."""
    asked = questions()
    behind = {
        "Shapley values": {label: {"agreement": standing_in_cells(values)} for label, values in cells().items()},
        **{QUESTIONS[mark][0]: all_standings(table) for mark, table in asked.items()},
        "known answers": {"`egcam truth`": standings_in_known_answers()},
    }
    found = {"behind": [*not_ahead(behind)], "cells": [*agreement()], "truth": [*truth_as_map()]}
    return found | {mark: [*verdicts(table, QUESTIONS[mark][2])] for mark, table in asked.items()}


def every_mean() -> str:
    """The means of every method."""
    parts = ["# The means of every method\n\nWritten by `research/default_page.py`.\n"]
    for mark, table in questions().items():
        parts += [f"## {QUESTIONS[mark][0].capitalize()}\n", *tables_of_means(table)]
    return "\n".join(parts).rstrip() + "\n"


def written_into(text: str, mark: str, lines: list[str]) -> str:
    """The text with these lines between the mark and the end of its block."""
    begin, end = f"<!-- {mark} -->", "<!-- end -->"
    if text.count(begin) != 1:
        raise ValueError(f"the page must hold {begin} once")
    before, _, rest = text.partition(begin)
    _, end, after = rest.partition(end)
    return "".join([before, begin, "\n", *(f"{line}\n" for line in lines), end, after])


def page(text: str) -> str:
    """The page of results with today's tables."""
    for mark, lines in tables().items():
        text = written_into(text, mark, ["", *lines])
    return text


def first_page(text: str) -> str:
    """README or the site's first page with today's known answers."""
    return written_into(text, "known_answers", [*landing()])


def main() -> None:
    for file, write in ((PAGE, page), *((file, first_page) for file in LANDING)):
        file.write_text(write(file.read_text(encoding="utf-8")), encoding="utf-8")
        print(file)
    for file, text in ((TABLES, every_mean()), (KNOWN, "".join(f"{line}\n" for line in landing()))):
        file.write_text(text, encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
