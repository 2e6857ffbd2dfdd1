"""What steadies the maps of inner layers, and what it costs: noise, more samples, smoothing over cells, several layers.

    EGCAM_DATA=… EGCAM_HALVES=… python research/steadiness.py research/networks.py:mobilenet_v2 features.13 features.18

Images of part "choose"; max-sensitivity is the largest relative change of the heat map under three draws of uniform
noise of a tenth of the image's range; the other metrics are as in `research/studies/default-layers.toml`. `--plot FILE`
draws the trade-off.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pandas
import torch
from cell_shapley import pictures
from torch import Tensor, nn

import egcam
from egcam import metrics
from egcam.imageops import gaussian_blur, heatmaps

Maps = Callable[[Tensor, Tensor], Tensor]


def smoothed(cam: egcam.Explainer, sigma: float) -> Maps:
    def maps(images: Tensor, targets: Tensor) -> Tensor:
        found = cam(images, targets)
        assert found.completeness is not None
        assert found.completeness.attributions is not None
        smooth = gaussian_blur(found.completeness.attributions[:, None], sigma)[:, 0]
        return heatmaps(smooth.relu(), found.size)

    return maps


def plain(cam: egcam.Explainer) -> Maps:
    return lambda images, targets: cam(images, targets).heatmaps


def forms(model: nn.Module, inner: str, last: str) -> dict[str, Maps]:
    expected = egcam.SlopeCAM
    found = {"grad-cam, last": plain(egcam.GradCAM(model, last)), "layer-cam, last": plain(egcam.LayerCAM(model, last))}
    found["default"] = plain(expected(model, inner))
    found["64 samples"] = plain(expected(model, inner, samples=64))
    for sigma in (0.5, 0.75, 1.0, 1.5):
        found[f"smoothed by {sigma} cells"] = smoothed(expected(model, inner), sigma)
    for scale in (0.2, 0.5):
        noisy = egcam.Expected(path="latent", difference="latent", kernel=egcam.Kernel("gaussian", scale))
        found[f"latent path, noise {scale}"] = plain(
            egcam.GradientCAM(model, inner, gradient=noisy, weighting="summed")
        )
    found["inner and last layer"] = plain(expected(model, [inner, last]))
    return found


def plot(table: pandas.DataFrame, file: Path) -> None:
    """Faithfulness against unsteadiness: a line through the amounts of smoothing, a point for every other form."""
    import matplotlib.pyplot as plt

    from egcam.figures import style

    average = table.drop(columns="image").groupby("method", sort=False).mean()
    smoothed = ["default", *(name for name in average.index if name.startswith("smoothed"))]
    with style.context():
        figure, axis = plt.subplots(figsize=(6.5, 4))
        line = average.loc[smoothed]
        axis.plot(line["max-sensitivity"], line["insertion-deletion"], "o-", color=style.color("slope-cam"))
        for name, row in average.iterrows():
            if name not in smoothed:
                axis.plot(row["max-sensitivity"], row["insertion-deletion"], "s", color="0.4")
            place = (row["max-sensitivity"], row["insertion-deletion"])
            axis.annotate(str(name), place, (5, 4), textcoords="offset points", fontsize=7)
        axis.set(xlabel="max-sensitivity: lower is steadier", ylabel="insertion − deletion")
        axis.margins(x=0.18)
        figure.tight_layout()
        figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("inner")
    parser.add_argument("last")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    classifier = egcam.zoo.load(given.model)
    model = classifier.model
    rows = []
    methods = forms(model, given.inner, given.last)
    every = pictures(classifier, "choose", given.images)
    step = -(-every.shape[-1] * every.shape[-2] // 12)
    for number, image in enumerate(every[:, None]):
        with torch.inference_mode():
            target = model(image).argmax(1)
        noise = torch.Generator().manual_seed(number)
        span = 0.1 * float(image.max() - image.min())
        near = [image + span * (2 * torch.rand(image.shape, generator=noise) - 1) for _ in range(3)]
        for name, maps in methods.items():
            heat = maps(image, target)
            away = max(float((maps(other, target) - heat).norm() / heat.norm()) for other in near)
            values = {
                "insertion-deletion": metrics.InsertionDeletion(step=step)(model, image, heat, target),
                "infidelity": metrics.Infidelity()(model, image, heat, target),
                "sparseness": metrics.Sparseness()(heat),
                "max-sensitivity": away,
            }
            rows.append({"image": number, "method": name, **{key: float(value) for key, value in values.items()}})
        print(f"{number + 1} of {len(every)} images", flush=True)
        given.out.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(rows).to_parquet(given.out / f"{classifier.name}.parquet")
    if given.plot:
        plot(pandas.DataFrame(rows), given.plot)
    print(pandas.DataFrame(rows).drop(columns="image").groupby("method", sort=False).mean().round(3).to_string())


if __name__ == "__main__":
    main()
