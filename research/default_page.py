"""Write docs/results/default.md and research/default_tables.md from the scores kept in research/scores.

    python research/default_page.py

Nothing on these pages is put together by hand; their first paragraphs are in research/pages. The table of known answers
in README.md and docs/index.md is written as well, between its two marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas
from score_tables import (
    METRICS,
    SCORES,
    TRUTH,
    Standing,
    all_standings,
    not_ahead,
    reliability,
    scores,
    standings_of,
    tables_of_means,
    verdicts,
)

from egcam.attribution.registry import is_control

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "default.md"
TABLES = HERE / "default_tables.md"
LANDING = (HERE.parent / "README.md", HERE.parent / "docs" / "index.md")
MARKS = "<!-- known answers: written by research/default_page.py -->\n", "<!-- end of known answers -->"
CONFIRMED = {  # study: the question it answers
    "confirm-usual": "Each at its usual layer",
    "confirm-vgg": "Each at its usual layer",
    "confirm-groups": "Each at its usual layer",
    "confirm-cifar": "Each at its usual layer",
    "confirm-vit": "Each at its usual layer",
    "confirm-sensitivity": "Each at its usual layer",
    "confirm-sensitivity-cifar": "Each at its usual layer",
    "confirm-elsewhere": "Other networks, pets",
    "confirm-second": "The runner-up",
    "confirm-second-cifar": "The runner-up",
    "confirm-infill": "Other infill",
    "confirm-infill-cifar": "Other infill",
    "confirm-perturbation": "Score-CAM and Ablation-CAM",
    "confirm-perturbation-cifar": "Score-CAM and Ablation-CAM",
    "confirm-same": "All at the default's layer",
    "confirm-same-cifar": "All at the default's layer",
    "confirm-same-vit": "All at the default's layer",
    "confirm-planted": "Planted patch, usual layers",
    "confirm-planted-cifar": "Planted patch, usual layers",
    "confirm-planted-same": "Planted patch, the default's layer",
    "confirm-planted-same-cifar": "Planted patch, the default's layer",
    "confirm-grids": "Grids, usual layers",
    "confirm-grids-groups": "Grids, usual layers",
    "confirm-grids-cifar": "Grids, usual layers",
    "confirm-grids-same": "Grids, the default's layer",
    "confirm-grids-same-cifar": "Grids, the default's layer",
}
AT_USUAL_LAYERS = ("confirm-usual", "confirm-vgg", "confirm-groups", "confirm-cifar", "confirm-vit")


def shapley(folder: str) -> Iterator[str]:
    """Correlation with the Shapley values: methods x networks."""
    table = pandas.concat([pandas.read_parquet(file) for file in sorted((SCORES / folder).glob("*.parquet"))])
    table["place"] = table.model + ", " + table.layer
    average = table.pivot_table(index="method", columns="place", values="pearson")
    order = average.drop(index="another referee", errors="ignore").mean(axis=1).sort_values(ascending=False).index
    average = average.loc[[*(name for name in ["another referee"] if name in average.index), *order]]
    yield "| map at the layer | " + " | ".join(average.columns) + " |"
    yield "| --- |" + " --- |" * len(average.columns)
    counts = table.groupby("place").image.nunique()
    yield "| *images* | " + " | ".join(str(counts[place]) for place in average.columns) + " |"
    agreed = average.loc["another referee"]
    known = (2 * agreed / (1 + agreed)) ** 0.5
    shown = [
        "slope-cam, 32",
        *(f"slope-cam, data, {count}" for count in (64, 512)),
        "hires-cam",
        "grad-cam",
    ]
    corrected = average.loc[[name for name in shown if name in average.index]] / known
    for method, row in pandas.concat([average, corrected.rename("{}, corrected".format)]).iterrows():
        yield f"| {method} | " + " | ".join("" if pandas.isna(value) else f"{value:.3f}" for value in row) + " |"
    words = [_standing_in_shapley(table[table.place == place]).word for place in average.columns]
    yield f"| *where {_JUDGED} stands* | " + " | ".join(words) + " |"
    yield ""


def _standing_in_shapley(table: pandas.DataFrame) -> Standing:
    """Where the default stands among the other methods on one network."""
    values = table.pivot(index="image", columns="method", values="pearson")
    ours = [name for name in values if name.startswith(("slope-cam,", "latent path", "another referee"))]
    values = values.drop(columns=[name for name in ours if name != _JUDGED])
    return standings_of({"cells": values}, {"cells": True}, _JUDGED)["cells"]


def on_real_networks(found: dict[str, pandas.DataFrame], heading: str) -> Iterator[tuple[str, pandas.DataFrame]]:
    """The scores of a test on real networks: each method at its usual layer, then all at the default's."""
    for title in _REAL[heading][1]:
        tables = [found[name] for name, own in CONFIRMED.items() if own == title and name in found]
        if tables:
            yield title, pandas.concat(tables)


def real_networks(found: dict[str, pandas.DataFrame]) -> Iterator[str]:
    """Known answers on real networks, as verdicts."""
    for heading, (text, _) in _REAL.items():
        yield from (heading, text)
        for title, table in on_real_networks(found, heading):
            yield f"{title}:\n"
            yield from verdicts(table, "grad-cam" if "usual" in title else "hires-cam")


def truth_as_map() -> Iterator[str]:
    """The Shapley values judged as a map, beside maps of the same layer: one table for each network."""
    files = sorted((SCORES / "truth-as-map").glob("*.parquet"))
    yield from tables_of_means(pandas.concat([pandas.read_parquet(file) for file in files]), TRUTH)


def by_kind(found: dict[str, pandas.DataFrame]) -> Iterator[str]:
    """The networks with heads of eight kinds, images of the kind "other" apart; then the Shapley values likewise."""
    kinds = pandas.read_parquet(SCORES / "kinds.parquet")
    own = kinds[(kinds.model == "AlexNet") & kinds.image.str.startswith("photograph ")]
    yield _KINDS.format(others=(own.kind == "other").sum(), photographs=len(own))
    table = pandas.concat([found[name] for name in ("confirm-usual", "confirm-vgg")])
    table = table.astype({"model": str, "image": str}).merge(kinds, on=["model", "image"])
    yield from verdicts(table.assign(model=table.model + _kind_or_other(table.kind)), "hires-cam")
    names = ["slope-cam, 32", "slope-cam, data, 64", "hires-cam", "grad-cam"]
    yield "The Pearson correlation with the Shapley values, likewise:\n"
    yield "| network | images | " + " | ".join(names) + " |"
    yield "| --- |" + " --- |" * (len(names) + 1)
    for model in ("alexnet-features.12", "vgg16-features"):
        values = pandas.read_parquet(SCORES / "shapley" / f"{model}.parquet")
        values["place"] = values.model + _kind_or_other(values["class"])
        for place, part in values.groupby("place"):
            average = part.groupby("method").pearson.mean()
            cells = " | ".join(f"{average[name]:.3f}" for name in names)
            yield f"| {place} | {part.image.nunique()} | {cells} |"
    yield ""


def _kind_or_other(kinds: pandas.Series) -> pandas.Series:
    return kinds.map(lambda kind: ", other" if kind == "other" else ", the seven kinds")


def truth() -> pandas.DataFrame:
    """The scores of `egcam truth`: method, test, image, score."""
    return pandas.read_parquet(SCORES / "truth.parquet").astype({"score": "float64"})


def where_not_ahead(found: dict[str, pandas.DataFrame]) -> Iterator[str]:
    """A table for each question on which something is ahead of the default, the primary one first."""
    questions: dict[str, dict[str, dict[str, Standing]]] = {}
    for name, table in found.items():
        question = questions.setdefault(CONFIRMED[name], {})
        for network, by_metric in all_standings(table).items():
            question[network] = question.get(network, {}) | by_metric
    primary = [question for question in questions if question.startswith("Planted")]
    for question in primary:
        yield from not_ahead(question, questions.pop(question))
    yield from not_ahead("Tests with a known answer", {"`egcam truth`": standings_in_known_answers()})
    for question, networks in questions.items():
        yield from not_ahead(question, networks)


def standings_in_known_answers() -> dict[str, Standing]:
    """Where the default stands in each test of `egcam truth`."""
    columns = {}
    for test, part in truth().groupby("test", sort=False, observed=True):
        columns[str(test)] = part.pivot(index="image", columns="method", values="score").dropna(axis=1)
    return standings_of(columns, {test: test != "walls" for test in columns})


def known_answers() -> Iterator[str]:
    """What `egcam truth` found: methods x tests."""
    table = truth()
    average = table.pivot_table(index="method", columns="test", values="score", sort=False, observed=True)
    order = average.drop(columns="walls").mean(axis=1).sort_values(ascending=False).index
    yield "| method | " + " | ".join(f"{test} {'↓' if test == 'walls' else '↑'}" for test in average.columns) + " |"
    yield "| --- |" + " --- |" * len(average.columns)
    for method in order:
        cells = ["" if pandas.isna(value) else f"{value:.2f}" for value in average.loc[method]]
        yield f"| {method} | " + " | ".join(cells) + " |"
    yield ""


def landing() -> Iterator[str]:
    """The known answers that fit a first page: ten methods, one of them a control, and six tests."""
    average = truth().pivot_table(index="method", columns="test", values="score", observed=True)
    yield "| | " + " | ".join(f"{test} {'↓' if test == 'walls' else '↑'}" for test in _LANDING_TESTS) + " |"
    yield "|---|" + "---|" * len(_LANDING_TESTS)
    for method, label in _LANDING_METHODS.items():
        cells = " | ".join(f"{average.loc[method, test]:.2f}" for test in _LANDING_TESTS)
        yield f"| {label} | {cells} |"


def budget() -> Iterator[str]:
    """What a map costs, and how good it is: one table for each network."""
    for file in sorted((SCORES / "budget").glob("*.parquet")):
        table = pandas.read_parquet(file)
        average = table.drop(columns=["model", "image"]).groupby(["method", "samples"], sort=False).mean()
        yield f"**{file.stem}**, {table.image.nunique()} images\n"
        yield "| method | samples | cost in forward passes | ins-del ↑ | infidelity ↓ |"
        yield "| --- | --- | --- | --- | --- |"
        for (method, samples), row in average.iterrows():
            yield f"| {method} | {samples} | {row.cost:.1f} | {row['insertion-deletion']:.3f} | {row.infidelity:.3f} |"
        yield ""


def manifold() -> Iterator[str]:
    """How real the points halfway along each path are: networks x paths."""
    table = pandas.read_parquet(SCORES / "manifold.parquet")
    table = table[table.share == 0.5].set_index(["model", "path"])
    paths = ("real images", "stepwise", "latent", "image")
    yield "| network | " + " | ".join(_PATHS[path] for path in paths) + " |"
    yield "| --- |" + " --- |" * len(paths)
    for model in sorted(table.index.unique("model")):
        found = [table.loc[(model, path)] for path in paths]
        cells = " | ".join(f"{one.active:.2f}, {one.distance:.2f}" for one in found)
        yield f"| {model}, {found[0].layer} | {cells} |"
    yield ""


def steadiness() -> Iterator[str]:
    """What steadies inner maps, one table for each network."""
    for file in sorted((SCORES / "steadiness").glob("*.parquet")):
        table = pandas.read_parquet(file)
        average = table.drop(columns="image").groupby("method", sort=False).mean()
        yield f"**{file.stem}**, {table.image.nunique()} images\n"
        yield "| form | " + " | ".join(METRICS[metric][0] for metric in average.columns) + " |"
        yield "| --- |" + " --- |" * len(average.columns)
        for method, row in average.iterrows():
            yield f"| {method} | " + " | ".join(f"{value:.3f}" for value in row) + " |"
        yield ""


def errors() -> Iterator[str]:
    """How far the map is from its limit, and says it is: networks x samples."""
    table = pandas.read_parquet(SCORES / "default-error.parquet")
    table = table.groupby(["model", "references", "path", "samples"])[["error", "reported"]].median().unstack()
    counts = table.columns.get_level_values("samples").unique()
    yield "| network | references | path | " + " | ".join(f"n = {samples}" for samples in counts) + " |"
    yield "| --- | --- | --- |" + " --- |" * len(counts)
    for (model, references, path), row in table.iterrows():
        cells = [f"{row['error', samples]:.2f} ({row['reported', samples]:.2f})" for samples in counts]
        yield f"| {model} | {references} | {path} | " + " | ".join(cells) + " |"
    yield ""


def page(found: dict[str, pandas.DataFrame]) -> str:
    """The short page: what is not ahead, known answers, verdicts."""
    parts = [intro("default"), "## Where it is not ahead\n", *where_not_ahead(found)]
    parts += ["## Against the Shapley values of the layer's cells\n", _SHAPLEY, *shapley("shapley")]
    parts += section("shapley-precise", "", _PRECISE, lambda: shapley("shapley-precise"))
    parts += section("truth-as-map", "### What the truth itself scores\n", _TRUTH_AS_MAP, truth_as_map)
    parts += [*real_networks(found), "## Tests with a known answer\n", _TRUTH, *known_answers()]
    parts += ["## Each method at its usual layer\n", _VERDICTS]
    parts += verdicts(pandas.concat([found[name] for name in AT_USUAL_LAYERS if name in found]))
    parts += section("kinds.parquet", "### AlexNet and VGG-16, by what they see\n", "", lambda: by_kind(found))
    for name, (heading, text, against) in _FURTHER.items():
        if name in found:
            parts += [heading, *([text] if text else []), *verdicts(found[name], against)]
    parts += section("steadiness", "", _STEADY, steadiness)
    parts += section("manifold.parquet", "## How real the points of a path are\n", _MANIFOLD, manifold)
    parts += section("budget", "## Quality against cost\n", _BUDGET, budget)
    parts += section("default-error.parquet", "## How many samples\n", _ERRORS, errors)
    parts += ["## How far the metrics can be trusted\n", _RELIABILITY, *reliability(found["confirm-usual"])]
    return "\n".join(parts).rstrip() + "\n"


def tables(found: dict[str, pandas.DataFrame]) -> str:
    """Every table of means, and those of the choice."""
    parts = [intro("default_tables"), "## Each method at its usual layer\n"]
    for name in AT_USUAL_LAYERS:
        parts += tables_of_means(found[name]) if name in found else []
    for name, (heading, _, _) in _FURTHER.items():
        parts += [heading, *tables_of_means(found[name])] if name in found else []
    for heading in _REAL:
        parts.append(heading)
        for title, table in on_real_networks(found, heading):
            parts += [f"### {title}\n", *tables_of_means(table)]
    parts += ["## How the default was chosen\n", _CHOSEN]
    parts += [*tables_of_means(_kept("default-steps")), "### The latent path\n", _FORMER]
    parts += tables_of_means(_kept("default-grid"))
    parts += ["### The layer\n", _LAYERS]
    for name in ("default-layers", "default-layers-cifar", "default-layers-vit"):
        parts += tables_of_means(_kept(name))
    parts += ["### The layer of SqueezeNet\n", _LAYERS_OF_SQUEEZENET]
    parts += tables_of_means(_kept("default-layers-squeezenet"))
    return "\n".join(parts).rstrip() + "\n"


def with_controls(table: pandas.DataFrame, usual: pandas.DataFrame) -> pandas.DataFrame:
    """Scores at usual layers, and those of the controls on the same networks, images and metrics."""
    controls = usual[[is_control(name) for name in usual.method]]
    return pandas.concat([table, controls.merge(table[["model", "image", "metric"]].drop_duplicates())])


def _kept(name: str) -> pandas.DataFrame:
    table = scores(name)
    assert table is not None, f"the scores of {name} are part of the repository"
    return table


def intro(name: str) -> str:
    """The first paragraphs of a page."""
    return (HERE / "pages" / f"{name}.md").read_text(encoding="utf-8")


def section(file: str, heading: str, text: str, lines: Callable[[], Iterator[str]]) -> list[str]:
    """A part of a page, if its scores are kept."""
    return [heading, *([text] if text else []), *lines()] if (SCORES / file).exists() else []


_JUDGED = "slope-cam, 32"  # as it is by default
_PLANTED = """\
Real networks in which a patch decides the class: 32 of 224 pixels wide, or 6 of 32, at random places. What follows an
inner layer, mostly the default's, was trained so on other images; a network is kept if the patch decides at least 99 %
of the images and at least 99 % of them are not taken for it without it (`research/planted.py`). "Heat in the right
place" counts all cells that the patch touches, at the size the map was made at; "mass in box" counts pixels, and the
box is the patch. The default's mean / Grad-CAM's; at the default's layer / HiResCAM's, and AlexNet's usual layer is the
default's, too, as VGG-16's is. The layer and length of training were changed until a network could be kept
(SqueezeNet, AlexNet, VGG-16, the ResNets, the transformers), before any map of it was scored on the patch. VGG-16's
images are drawn from the 246 that it decides as well, the others' from 248. In VGG-16 the last three convolutions learn
the patch, too, so that their activations alone show where it is: the mean activation puts 0.66 of its heat there.
"""
_GRIDS = """\
The unchanged networks on grids of four images of different classes, all of which they recognise one by one
(`research/grids.py`): the share of heat in the cell that shows the explained class. The default's
mean / Grad-CAM's; at the default's layer / HiResCAM's. AlexNet's and VGG-16's usual layer is the default's, too.
"""
_REAL = {  # heading: what to know, and the titles of the studies
    "## A planted patch\n": (_PLANTED, ("Planted patch, usual layers", "Planted patch, the default's layer")),
    "## Grids of images\n": (_GRIDS, ("Grids, usual layers", "Grids, the default's layer")),
}
_LANDING_TESTS = ("walls", "gridpg", "patch", "shapes", "unit+", "cells")
_LANDING_METHODS = {
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
_FURTHER = {  # study: heading, what to know, whose mean stands beside the default's
    "confirm-same": (
        "## All methods at the layer of the default\n",
        "The default's mean / HiResCAM's.\n",
        "hires-cam",
    ),
    "confirm-elsewhere": (
        "## Other networks, on pets\n",
        "Two networks on which nothing was chosen, each method at its usual layer; "
        "in place of a box, the animal's outline.\n",
        "grad-cam",
    ),
    "confirm-second": (
        "## The class with the second highest score\n",
        "The map explains the runner-up instead of the prediction; each method at its usual layer.\n",
        "grad-cam",
    ),
    "confirm-infill": (
        "## Infill that is no method's reference\n",
        "Insertion-deletion where removed pixels become those of another photograph; ROAD in both orders, which fills "
        "them in from their neighbours, on ImageNet only against Grad-CAM, HiResCAM, LayerCAM and controls.\n",
        "grad-cam",
    ),
    "confirm-perturbation": (
        "## Score-CAM and Ablation-CAM\n",
        "The default's mean / Score-CAM's, which costs a pass for each channel.\n",
        "score-cam",
    ),
    "confirm-sensitivity": (
        "## How steady\n",
        "No controls here: a map that never changes is perfectly steady.\n",
        "grad-cam",
    ),
}
_SHAPLEY = """\
Pearson correlation of signed maps with the Shapley value of each cell: the mean change of the score when the cell's
activations replace those of a reference, over random orders of the cells (`egcam.truth.cell_shapley`). They are the
mean of two referees, each with images of the data that no map has seen and orders of its own: 16 for each image on
AlexNet, VGG-16 and the transformers, where a cell costs little, 4 on the others, and other ones for the next image.
The maps' references are the package's photographs, or, where the name says so, other images of the data. The last
number of a name is that of its samples. "Latent path" is the former default, gradients between activations; "path of
images" and "conductance" are gradients along images, times A - A' or what A gains from point to point.

"Another referee" is how well the two referees agree, q: that is how far the truth of a single image is known. Their
mean then agrees with the truth at about sqrt(2 q / (1 + q)), and a map's correlation with the truth is about that with
the mean, divided by this: the rows called "corrected". Names with "groups" are networks whose head has no class for the
rest.
"""
_PRECISE = """\
On fewer images, with 64 images and as many orders for each referee, twice as many where a cell costs little: the truth
of each image is known well, and the correction is small.
"""
_TRUTH_AS_MAP = """\
The same Shapley values taken as a map: rectified, enlarged and judged by the metrics like any other, beside maps of the
same layer on the same images (`research/truth_as_map.py`). A metric by which a method is ahead of the truth rewards
something else than being right. This truth is in comparison with images of the data; the default's maps are in
comparison with photographs or, "data", with 64 other images of the data.
"""
_TRUTH = """\
`egcam truth`, with the small network it trains; [what each test knows](../truth.md). Walls measures
heat in the wrong place, so lower is better there; everywhere else higher is.
"""
_VERDICTS = """\
The default's mean / Grad-CAM's, and where the default stands among all methods. "16 groups" are AlexNet and
VGG-16 with another head, without a class for the rest; they were added last, and nothing was chosen on them.
"""
_KINDS = """\
Their heads know seven kinds of things and "other". Two images of three are "other", and so are most of the package's
photographs ({others} of {photographs} on AlexNet): the map then explains what makes the image more "other" than they
are. The default's mean / HiResCAM's.
"""
_ERRORS = """\
||map of n samples - limit|| / ||limit||, signed maps, the limit being 2,048 samples with the same references: the
median over images and three seeds (`research/default_error.py`). In brackets, the error that the explanation reports.
Stepwise is the default; before a dense head (AlexNet) 64 samples see all 64 photographs once, and nothing is left to
chance.
"""
_CHOSEN = """\
On the other half of the images. Steps and the latent path first, with photographs and 32 samples unless a number says
otherwise. Only a first look at the Shapley values, at how many steps to take, was on images of the confirming half: 60
of AlexNet, 20 of a ViT, 5 to 10 of MobileNetV2, EfficientNet-Lite0 and SqueezeNet. VGG-16 and the ViT without class
token had no part in it.
"""
_FORMER = """\
How the latent path was chosen before. "Difference" multiplies the gradient by A - A', "activation" by A; the number
at the end is that of the samples, 32 unless said; "agreed" weighs negative evidence by how far the samples agree.
"images, mixed, agreed" is the former default, with 16 samples.
"""
_LAYERS = """\
The latent path with 16 samples, and 32 on the transformers.
"""
_LAYERS_OF_SQUEEZENET = """\
The default, in steps, at the layers of its last resolution. What follows features.12 scores each place by itself.
"""
_STEADY = """\
What makes the map of an inner layer steadier, and what it costs. Max-sensitivity here is the largest relative change
of the heat map under three draws of noise of a tenth of the image's range. What is smoothed is the default's
signed map; noise is added on the latent path, because steps take none.
"""
_PATHS = {"real images": "real images", "stepwise": "steps", "latent": "latent path", "image": "path of images"}
_MANIFOLD = """\
Halfway between a photograph and the image: the share of active units, and the distance of the channels' means from
those of real images, where 1 is as far as real images are from each other (`research/manifold.py`, 64 images). Below 1
is nearer to the middle, as a mean of two is. What sets the paths apart is the first number: behind a ReLU the latent
path has up to twice as many active units as real images; between two steps every cell is that of a real image.
"""
_BUDGET = """\
Every method at its usual layer, references already seen. A run of what follows the layer counts by its share of the
network's multiplications, forward and backward each (`research/budget.py`). "Latent path" and "along images" are
SlopeCAM with gradients between activations and on a path of images, at the same layer and with the same
references.

![Insertion-deletion and infidelity against the cost of a map](../pictures/budget.png)
"""
_RELIABILITY = """\
Split-half reliability of the order of the methods, controls among them (1: two halves of the images agree), and the
metric whose order of the methods is most alike.
"""


def main() -> None:
    kept = {name: scores(name) for name in CONFIRMED}
    found = {name: table for name, table in kept.items() if table is not None}
    for study in _FURTHER:  # one table of all networks
        parts = [found.pop(name) for name in list(found) if name == study or name.startswith(f"{study}-")]
        found |= {study: pandas.concat(parts)} if parts else {}
    usual = pandas.concat([found[name] for name in AT_USUAL_LAYERS if name in found])
    found["confirm-perturbation"] = with_controls(found["confirm-perturbation"], usual)
    PAGE.write_text(page(found), encoding="utf-8")
    TABLES.write_text(tables(found), encoding="utf-8")
    for file in LANDING:
        text = file.read_text(encoding="utf-8")
        assert all(text.count(mark) == 1 for mark in MARKS), f"{file} must hold the two marks of the table"
        before, _, rest = text.partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        file.write_text("".join([before, MARKS[0], *(f"{line}\n" for line in landing()), MARKS[1], after]), "utf-8")
    print(PAGE, TABLES, *LANDING, sep="\n")


if __name__ == "__main__":
    main()
