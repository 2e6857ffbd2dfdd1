"""Every metric once more: plain NumPy, one image at a time, one pixel at a time, written from the definitions.

`predict` maps an (n, C, H, W) array to (n, classes) logits; x is one image (C, H, W), a its map (H, W), y its class.
"""

from __future__ import annotations

import itertools
import math

import numpy as np


def softmax(logits):
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def probability(predict, x, y):
    return softmax(predict(x[None])[0])[y]


def logit(predict, x, y):
    return predict(x[None])[0][y]


def in_order(a, descending=True):
    """Pixel coordinates, most (or least) relevant first, ties in reading order."""
    height, width = a.shape
    places = [(i, j) for i in range(height) for j in range(width)]
    return sorted(places, key=lambda p: -a[p] if descending else a[p])


def groups_of(places, step):
    return [places[start : start + step] for start in range(0, len(places), step)]


def with_pixels(x, places, source):
    """x with the pixels at `places` taken from `source` (an image or one number per channel)."""
    changed = x.copy()
    for i, j in places:
        for c in range(len(x)):
            changed[c, i, j] = source[c, i, j] if np.ndim(source) == 3 else source
    return changed


def trapezoid(xs, ys):
    return sum((xs[k + 1] - xs[k]) * (ys[k + 1] + ys[k]) / 2 for k in range(len(xs) - 1))


def correlation(a, b):
    a, b = np.asarray(a, float), np.asarray(b, float)
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / size) if size > 1e-14 else 0.0


def faithfulness_estimate(predict, x, a, y, step):
    said, real = [], []
    for group in groups_of(in_order(a), step):
        said.append(sum(a[p] for p in group))
        real.append(logit(predict, x, y) - logit(predict, with_pixels(x, group, x.min()), y))
    return correlation(said, real)


def curve(predict, start, end, a, y, step, descending=True):
    places = in_order(a, descending)
    shares, scores, now = [0.0], [probability(predict, start, y)], start
    gone = 0
    for group in groups_of(places, step):
        now = with_pixels(now, group, end)
        gone += len(group)
        shares.append(gone / len(places))
        scores.append(probability(predict, now, y))
    return shares, scores


def pixel_flipping(predict, x, a, y, step):
    return trapezoid(*curve(predict, x, np.full_like(x, x.min()), a, y, step))


def pixel_flipping_paper(predict, x, a, y, step):
    _, scores = curve(predict, x, np.full_like(x, x.min()), a, y, step)
    return trapezoid(range(len(scores) - 1), scores[1:])


def deletion(predict, x, a, y, step):
    return trapezoid(*curve(predict, x, np.zeros_like(x), a, y, step))


def blurred(x, size=11, sigma=5.0):
    half = size // 2
    channels, height, width = x.shape
    weights = np.array(
        [[math.exp(-(i * i + j * j) / (2 * sigma**2)) for j in range(-half, half + 1)] for i in range(-half, half + 1)]
    )
    weights /= weights.sum()
    made = np.zeros_like(x)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                for di in range(-half, half + 1):
                    for dj in range(-half, half + 1):
                        near = x[c, min(max(i + di, 0), height - 1), min(max(j + dj, 0), width - 1)]
                        made[c, i, j] += weights[di + half, dj + half] * near
    return made


def insertion(predict, x, a, y, step):
    return trapezoid(*curve(predict, blurred(x), x, a, y, step))


def monotonicity(predict, x, a, y, step):
    _, scores = curve(predict, np.full_like(x, x.min()), x, a, y, step, descending=False)
    return float(np.mean([later >= earlier for earlier, later in itertools.pairwise(scores)]))


def irof_ratios(predict, x, a, y, segments, fill):
    means = {label: a[segments == label].mean() for label in np.unique(segments)}
    now, ratios = x, [1.0]
    for label in sorted(means, key=lambda one: -means[one]):
        now = np.where((segments == label)[None], fill, now)
        ratios.append(probability(predict, now, y) / probability(predict, x, y))
    return ratios


def irof(predict, x, a, y, segments):
    ratios = irof_ratios(predict, x, a, y, segments, x.mean((1, 2), keepdims=True))
    count = len(ratios) - 1
    return 1 - trapezoid([k / count for k in range(count + 1)], ratios)


def irof_paper(predict, x, a, y, segments):
    ratios = irof_ratios(predict, x, a, y, segments, x.mean())
    return len(ratios) - 1 - trapezoid(range(len(ratios) - 1), ratios[1:])


def sufficiency(predict, images, maps, threshold=0.6):
    rows = [np.abs(a).ravel() / np.abs(a).max() for a in maps]
    count = len(rows)
    variance = np.var(rows, axis=0, ddof=1)
    use = variance > 1e-20
    distance = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            distance[i, j] = math.sqrt((((rows[i] - rows[j]) ** 2)[use] / variance[use]).sum())
    distance = distance / distance.max() if distance.max() > 0 else distance
    predicted = predict(images).argmax(1)
    scores = []
    for i in range(count):
        near = [j for j in range(count) if j != i and distance[i, j] <= threshold]
        scores.append(sum(predicted[j] == predicted[i] for j in near) / len(near) if near else 0.0)
    return scores


def infidelity(predict, x, a, y, side, scale="best", cumulative=False):
    _, height, width = x.shape
    said, real, now = [], [], x
    for top in range(0, height, side):
        for left in range(0, width, side):
            patch = [(i, j) for i in range(top, min(top + side, height)) for j in range(left, min(left + side, width))]
            now = with_pixels(now if cumulative else x, patch, x.min())
            said.append(float((a[None] * (x - now)).sum()))
            real.append(logit(predict, x, y) - logit(predict, now, y))
    said, real = np.array(said), np.array(real)
    if scale == "unit-sum":
        said = said / np.abs(a).sum()
    if scale == "best":
        said = said * (np.mean(said * real) / np.mean(said**2))
    return float(np.mean((said - real) ** 2))


def sensitivity_n(predict, x, a, y, orders, sizes):
    flat, found = a.ravel(), []
    for size in sizes:
        said, real = [], []
        for order in orders:
            chosen = [place for place in range(a.size) if order[place] < size]
            said.append(flat[chosen].sum())
            changed = with_pixels(x, [divmod(place, a.shape[1]) for place in chosen], x.min())
            real.append(logit(predict, x, y) - logit(predict, changed, y))
        found.append(correlation(said, real))
    return float(np.mean(found))


def norm(values):
    return math.sqrt((np.asarray(values) ** 2).sum())


def local_lipschitz(x, a, xs, maps):
    def scaled(one):
        return one / np.abs(one).max()

    return max(norm(scaled(a) - scaled(b)) / norm(x - z) for z, b in zip(xs, maps, strict=True))


def sensitivities(a, maps):
    return [norm(a - b) / norm(a) for b in maps]


def away_from_zero(values, floor=1e-6):
    return np.where(np.abs(values) < floor, np.where(values < 0, -floor, floor), values)


def relative_input_stability(predict, x, a, xs, maps):
    label = predict(x[None])[0].argmax()
    found = []
    for z, b in zip(xs, maps, strict=True):
        if predict(z[None])[0].argmax() == label:
            found.append(norm((a - b) / away_from_zero(a)) / max(norm((x - z) / away_from_zero(x)), 1e-6))
    return max(found)


def relative_output_stability(predict, x, a, xs, maps):
    before = predict(x[None])[0]
    found = []
    for z, b in zip(xs, maps, strict=True):
        after = predict(z[None])[0]
        if after.argmax() == before.argmax():
            found.append(norm((a - b) / away_from_zero(a)) / max(norm(before - after), 1e-6))
    return max(found)


def complexity(a):
    share = np.abs(a).ravel() / np.abs(a).sum()
    return -sum(q * math.log(q) for q in share if q > 0)


def sparseness(a):
    """The Gini index as the mean difference of all pairs."""
    mass = np.abs(a).ravel()
    return float(np.abs(mass[:, None] - mass[None]).sum() / (2 * len(mass) ** 2 * mass.mean()))


def attribution_localization(a, mask):
    return np.abs(a)[mask].sum() / np.abs(a).sum()


def relevance_mass_accuracy(a, mask):
    return a[mask].sum() / a.sum()


def top_k_intersection(a, mask, k):
    return float(np.mean([mask[p] for p in in_order(a)[:k]]))


def relevance_rank_accuracy(a, mask):
    return top_k_intersection(a, mask, int(mask.sum()))


def pointing_game(a, mask):
    return float(mask[in_order(a)[0]])


def energy_pointing_game(a, mask):
    energy = np.where(a > 0, a, 0)
    return energy[mask].sum() / energy.sum()


def through(x, a):
    window = np.where(a > 0, a, 0) / a.max()
    return x * window[None]


def average_drop(predict, x, a, y):
    before, after = probability(predict, x, y), probability(predict, through(x, a), y)
    return max(0.0, before - after) / before


def increase_in_confidence(predict, x, a, y):
    return float(probability(predict, through(x, a), y) > probability(predict, x, y))


def average_gain(predict, x, a, y):
    before, after = probability(predict, x, y), probability(predict, through(x, a), y)
    return max(0.0, after - before) / (1 - before)


def adcc(predict, explain, x, y):
    a = explain(x, y)
    coherency = (1 + correlation(a.ravel(), explain(through(x, a), y).ravel())) / 2
    simplicity = 1 - (np.where(a > 0, a, 0) / a.max()).mean()
    kept = 1 - average_drop(predict, x, a, y)
    return 3 / (1 / coherency + 1 / simplicity + 1 / kept)


def imputed(x, gone):
    """Solve for all removed pixels at once, each the weighted mean of those neighbours that exist."""
    _, height, width = x.shape
    unknown = [(i, j) for i in range(height) for j in range(width) if gone[i, j]]
    number = {place: k for k, place in enumerate(unknown)}
    filled = x.copy()
    for c in range(len(x)):
        matrix, right = np.zeros((len(unknown), len(unknown))), np.zeros(len(unknown))
        for (i, j), k in number.items():
            for di in (-1, 0, 1):
                for dj in (-1, 0, 1):
                    near = (i + di, j + dj)
                    if (di, dj) == (0, 0) or not (0 <= near[0] < height and 0 <= near[1] < width):
                        continue
                    weight = 1 / 6 if di == 0 or dj == 0 else 1 / 12
                    matrix[k, k] += weight
                    if near in number:
                        matrix[k, number[near]] -= weight
                    else:
                        right[k] += weight * x[c][near]
        for place, value in zip(unknown, np.linalg.solve(matrix, right), strict=True):
            filled[c][place] = value
    return filled


def road(predict, x, a, y, shares, noises):
    scores = []
    for share, noise in zip(shares, noises, strict=True):
        gone = np.zeros(a.shape, bool)
        for place in in_order(a)[: int(share * a.size)]:
            gone[place] = True
        scores.append(probability(predict, imputed(x, gone) + noise * gone[None], y))
    return float(np.mean(scores))
