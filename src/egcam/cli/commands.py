"""The commands, their options and their help. What they do is imported when they run: help stays quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from egcam.cli.console import EXIT_CODES, clear_errors
from egcam.cli.study_app import study

app = typer.Typer(
    name="egcam",
    help="Why did the network say that? Heat maps of what an image classifier looked at.\n\n"
    "Expected Grad-CAM and the methods it is compared with, on any convolutional classifier.",
    epilog="Start with:  egcam demo   and then:  egcam explain photo.jpg\n\n" + EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_DEFAULT_MODEL = "efficientnet-lite0"
_DEFAULT_METHOD = "expected-grad-cam"
_OUT = Path("egcam-out")

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="Embedded, torchvision's, timm's (timm/NAME), or one's own: path/to/file.py:function. See: egcam models",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A saved state_dict, read without running code; 'random' for untrained weights."),
]
Classes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Class names, one on each line or in JSON, where they are not known."),
]
Target = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="NAME|INT", help="The class to explain; the predicted one if not given."),
]
Layer = Annotated[str | None, typer.Option(metavar="NAME", help="The layer, by dotted name; found if not given.")]
Reference = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="What the image is compared with: a folder of other images (best: from the same data), or "
        "mixed, blurred, colours, noise, uniform, constant, black, white.",
    ),
]
Samples = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="How many samples (or steps) an averaging method takes.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Same seed, same map.")]
Device = Annotated[str | None, typer.Option(metavar="D", help="cpu, cuda, cuda:1, mps; a GPU if there is one.")]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Most images in one pass; else as memory allows.")
]
Signed = Annotated[bool, typer.Option("--signed", help="Show what speaks against the class, too (no ReLU).")]
Sharpness = Annotated[
    float,
    typer.Option(metavar="P", min=1, help="Show heat maps to the power of P: what is small gets smaller."),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the files go.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]


def _version(wanted: bool) -> None:
    if wanted:
        from egcam._version import __version__

        typer.echo(f"egcam {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A Python file that registers methods of your own, before the command."),
    ] = None,
) -> None:
    if plugin:
        from egcam.studies.plugins import import_plugins

        with clear_errors():
            import_plugins(str(file) for file in plugin)


@app.command(
    epilog="Example:  egcam explain cat.jpg dog.png --target tabby --reference my_photos/ --out maps\n\n" + EXIT_CODES
)
def explain(
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE", help="Image files, or folders of them.", show_default=False),
    ],
    model: Model = _DEFAULT_MODEL,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="How to explain; see: egcam methods")
    ] = _DEFAULT_METHOD,
    target: Target = None,
    layer: Layer = None,
    reference: Reference = None,
    samples: Samples = None,
    seed: Seed = 0,
    device: Device = None,
    batch_size: BatchSize = None,
    out: Out = _OUT,
    weights: Weights = None,
    classes: Classes = None,
    score: Annotated[
        str,
        typer.Option(metavar="KIND", help="What is explained: logit, probability, or sigmoid (multi-label)."),
    ] = "logit",
    signed: Signed = False,
    sharpness: Sharpness = 1.0,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many predictions --json lists.")] = 5,
    as_json: Json = False,
) -> None:
    """Explain images: an overlay, a heat map and the numbers for each.

    Each image gets a folder below --out with overlay.png, heatmap.png, explanation.npz and explanation.json.
    An image that cannot be read is named, and the others are still done.
    """
    from egcam.cli.explain import explain_files

    options = {
        "layer": layer,
        "samples": samples,
        "seed": seed,
        "batch_size": batch_size,
        "score": score,
        "signed": signed,
    }
    with clear_errors(as_json):
        code = explain_files(
            images,
            model=model,
            weights=weights,
            classes=classes,
            device=device,
            method=method,
            target=target,
            reference=reference,
            options=options,
            sharpness=sharpness,
            out=out,
            top=top,
            as_json=as_json,
        )
        raise typer.Exit(code)


@app.command(epilog="Example:  egcam compare cat.jpg --methods grad-cam,layer-cam,expected-grad-cam\n\n" + EXIT_CODES)
def compare(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file.", show_default=False)],
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="a,b,c|all",
            help="Which methods; seven usual ones if not given. all leaves out those that cannot be applied.",
        ),
    ] = None,
    model: Model = _DEFAULT_MODEL,
    target: Target = None,
    layer: Layer = None,
    reference: Reference = None,
    samples: Samples = None,
    seed: Seed = 0,
    device: Device = None,
    batch_size: BatchSize = None,
    out: Out = _OUT,
    weights: Weights = None,
    classes: Classes = None,
    signed: Signed = False,
    sharpness: Sharpness = 1.0,
    as_json: Json = False,
) -> None:
    """Compare methods on one image: a labelled grid with the image, each method and the top-5 predictions."""
    from egcam.cli.compare import compare_methods

    options = {"layer": layer, "samples": samples, "seed": seed, "batch_size": batch_size, "signed": signed}
    with clear_errors(as_json):
        code = compare_methods(
            image,
            model=model,
            weights=weights,
            classes=classes,
            device=device,
            methods=methods,
            target=target,
            reference=reference,
            options=options,
            sharpness=sharpness,
            out=out,
            as_json=as_json,
        )
        raise typer.Exit(code)


@app.command(
    epilog="Example:  egcam saturation photos/ --model efficientnet-lite0 --layer _blocks.10 --out saturated\n\n"
    + EXIT_CODES
)
def saturation(
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE|FOLDER", help="Image files, or folders of them.", show_default=False),
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME[,NAME]", help="One or more networks. See: egcam models")
    ] = _DEFAULT_MODEL,
    layer: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME]", help="The layer, one for all networks or one each; found if not given."),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="How many values of a, from black to image.")] = 25,
    spacing: Annotated[
        str,
        typer.Option(metavar="KIND", help="Of a: even, or uniform: drawn from U(0, 1) as in the paper, ends added."),
    ] = "even",
    most: Annotated[int, typer.Option("--images", metavar="N", min=1, help="Most images of a folder.")] = 25,
    target: Target = None,
    reference: Reference = None,
    samples: Samples = None,
    grid: Annotated[
        int, typer.Option(metavar="N", min=2, help="Cells along each side of the image; patches are these cells.")
    ] = 4,
    seed: Seed = 0,
    device: Device = None,
    batch_size: BatchSize = None,
    out: Out = Path("egcam-saturation"),
    weights: Annotated[
        str | None,
        typer.Option(metavar="FILE[,FILE]", help="Saved state_dicts, in the order of --model; 'random' for untrained."),
    ] = None,
    classes: Classes = None,
    sharpness: Sharpness = 1.0,
    as_json: Json = False,
) -> None:
    """Does the network saturate, and can its plain gradient be trusted?

    Each image is scaled up from black: pixels times a, a from 0 to 1. At each a: the cosine of the layer's embedding to
    the full image's, the top label's logit and softmax score, and the length of the gradient. Makes figures (PNG, SVG),
    CSV and summary.json, and ends with a verdict, with Grad-CAM and Expected Grad-CAM side by side. As in the paper:
    --model vgg16,resnet50,alexnet --layer features.30,layer4,features.12 --spacing uniform
    """
    from egcam.cli.saturation import study_saturation

    with clear_errors(as_json):
        code = study_saturation(
            images,
            models=model,
            layers=layer,
            weights=weights,
            classes=classes,
            device=device,
            target=target,
            reference=reference,
            samples=samples,
            steps=steps,
            spacing=spacing,
            most=most,
            grid=grid,
            seed=seed,
            batch_size=batch_size,
            sharpness=sharpness,
            folder=out,
            as_json=as_json,
        )
        raise typer.Exit(code)


@app.command(epilog="Example:  egcam demo --out demo --open\n\n" + EXIT_CODES)
def demo(
    out: Out = Path("egcam-demo"),
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Leave out the slowest method and take fewer samples: about three times as fast."),
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Every method on every photograph, even where that takes over three minutes.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
    as_json: Json = False,
) -> None:
    """See it work, without a network or files of your own: every method on four photographs.

    The embedded EfficientNet-Lite0 looks at photographs that come with scikit-image. Makes gallery.png and a web
    page, index.html, that needs nothing else.
    """
    from egcam.cli.demo import show_demo

    with clear_errors(as_json):
        show_demo(out, quick, full, open_page, as_json)


@app.command("methods", epilog="Example:  egcam methods --json\n\n" + EXIT_CODES)
def list_methods(as_json: Json = False) -> None:
    """List the methods, what each does and the options it takes."""
    from egcam.cli.lists import show_methods

    with clear_errors(as_json):
        show_methods(as_json)


@app.command("models", epilog="Example:  egcam models resnet\n\n" + EXIT_CODES)
def list_models(
    part: Annotated[
        str | None, typer.Argument(metavar="PART", help="Only names that contain this.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models that can be named."""
    from egcam.cli.lists import show_models

    with clear_errors(as_json):
        show_models(part, as_json)


@app.command(epilog="Example:  egcam figure grid cat.jpg --out grid.png --out grid.svg\n\n" + EXIT_CODES)
def figure(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="grid, mask, patches, contrast, convergence, curves, bars, ranks or radar.",
            show_default=False,
        ),
    ],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Image files, or folders of them.", show_default=False)
    ],
    methods: Annotated[
        str | None,
        typer.Option("--methods", metavar="a,b,c|all", help="Which methods; by default those usual for the kind."),
    ] = None,
    model: Model = _DEFAULT_MODEL,
    target: Target = None,
    contrast_with: Annotated[
        str | None, typer.Option(metavar="NAME|INT", help="contrast: the other class; else the next most probable.")
    ] = None,
    mask: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="The object, white on black, as large as its image; once for each image."),
    ] = None,
    saturated: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="grid: images with a saturated score, shown below.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="a,b,c", help="bars, ranks, radar, mask: which quality metrics.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Pixels changed at once in curves and their areas; else one row's."),
    ] = None,
    patches: Annotated[int, typer.Option(metavar="N", min=1, help="patches: how many cells of the grid.")] = 4,
    grid: Annotated[int, typer.Option(metavar="N", min=1, help="patches: cells along each side of the image.")] = 7,
    layer: Layer = None,
    reference: Reference = None,
    samples: Samples = None,
    seed: Seed = 0,
    device: Device = None,
    batch_size: BatchSize = None,
    weights: Weights = None,
    classes: Classes = None,
    signed: Signed = False,
    width: Annotated[str | None, typer.Option(metavar="W", help="column (3.3 in), page (6.9 in), or inches.")] = None,
    colors: Annotated[str | None, typer.Option(metavar="NAME", help="A matplotlib colour map; viridis.")] = None,
    sharpness: Sharpness = 1.0,
    dpi: Annotated[int, typer.Option(metavar="N", min=20, max=2400, help="Pixels per inch.")] = 300,
    out: Annotated[
        list[Path] | None,
        typer.Option("--out", "-o", metavar="FILE", help="FILE.png or FILE.svg; may be given twice."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw a figure for a paper, as PNG or SVG: what it shows is computed from the images.

    grid: image, coarse maps and overlays of several methods. mask: maps beside the object's mask, with scores.
    patches: the most important parts. contrast: why this class rather than that. convergence: how many samples a map
    needs. curves: insertion and deletion. bars, ranks, radar: quality metrics.
    """
    from egcam.cli.figures import draw_figure

    options = {"layer": layer, "samples": samples, "seed": seed, "batch_size": batch_size, "signed": signed}
    with clear_errors(as_json):
        code = draw_figure(
            kind,
            images,
            model=model,
            weights=weights,
            classes=classes,
            device=device,
            methods=methods,
            target=target,
            contrast_with=contrast_with,
            reference=reference,
            options=options,
            masks=mask or [],
            saturated=saturated or [],
            metrics=metrics,
            step=step,
            patches=patches,
            grid=grid,
            width=width,
            colors=colors,
            sharpness=sharpness,
            dpi=dpi,
            out=out or [],
            as_json=as_json,
        )
        raise typer.Exit(code)


@app.command("app", epilog="Example:  egcam app --model resnet50 --open\n\n" + EXIT_CODES)
def serve_app(
    model: Model = _DEFAULT_MODEL,
    weights: Weights = None,
    classes: Classes = None,
    layer: Layer = None,
    device: Device = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Where to listen. Only this machine reaches 127.0.0.1; 0.0.0.0: others, too."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 takes any that is free.")] = 7860,
    max_upload: Annotated[float, typer.Option("--max-upload", metavar="MB", help="The largest image file.")] = 20.0,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
    password: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Asked of every visitor. Others on this machine can read what is typed here: rather set the variable "
            "EGCAM_PASSWORD, or be asked.",
        ),
    ] = None,
    ask_password: Annotated[bool, typer.Option("--ask-password", help="Be asked for the password, unseen.")] = False,
) -> None:
    """Explain images in the browser: drop one, choose class, layer and methods, compare, measure, download.

    Serves one page until Ctrl-C, to this machine only unless --host says otherwise. Uploads stay in a temporary folder
    for about an hour, and go with the page. Needs the extra called app (Gradio).
    """
    from egcam.cli.web import run_app

    with clear_errors():
        run_app(
            model=model,
            weights=weights,
            classes=classes,
            device=device,
            layer=layer,
            host=host,
            port=port,
            max_upload=max_upload,
            open_page=open_page,
            password=password,
            ask_password=ask_password,
        )


app.add_typer(study, name="study")


def main() -> None:
    """Run the command."""
    app()
