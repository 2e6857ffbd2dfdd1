"""Sampling schemes: the points they say, nothing changed in the mean, and evenness where it is promised."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

import egcam
from egcam.attribution.averaging import replicate_sizes
from egcam.attribution.references import Visit
from egcam.attribution.sampling import SAMPLINGS, Lattice, MonteCarlo, Sampling, radical_inverse, scheme
from support.forms import along_images
from support.networks import pictures, saturated, smooth_everywhere

pytestmark = pytest.mark.usefixtures("one_thread")

LAYER = "features"


def visit(sample: int, references: int) -> Visit:
    return Visit(sample % references, sample // references)


def recorded(sampling: Sampling, pool: Tensor, samples: int, seed: int = 0, image: int = 0) -> list[tuple[int, float]]:
    """(number of the reference in the pool, a) of every sample, as the path is asked for them."""
    calls: list[tuple[int, float]] = []

    def path(references: Tensor, images: Tensor, share: float) -> Tensor:
        found = [index for index, one in enumerate(pool) if torch.equal(one, references[0])]
        calls.append((found[0], share))
        return images

    cam = along_images(
        smooth_everywhere(),
        LAYER,
        reference=pool,
        samples=samples,
        path=path,
        sampling=sampling,
        seed=seed,
        signed=True,
    )
    cam(pictures(1, seed=image), target=0)
    return calls


def strata(shares: list[float], count: int) -> list[int]:
    return sorted(int(share * count) for share in shares)


# -- the lattice ---------------------------------------------------------------------------------


def test_radical_inverse_mirrors_the_binary_digits() -> None:
    assert [radical_inverse(number) * 16 for number in range(16)] == [
        0,
        8,
        4,
        12,
        2,
        10,
        6,
        14,
        1,
        9,
        5,
        13,
        3,
        11,
        7,
        15,
    ]


def test_lattice_is_the_sum_of_two_sequences_and_a_shift() -> None:
    pool = pictures(5, seed=7)
    found = recorded("lattice", pool, 15)
    shift = found[0][1]
    order = [index for index, _ in found[:5]]
    for sample, (index, share) in enumerate(found):
        assert index == order[sample % 5]
        wanted = (radical_inverse(sample % 5) + radical_inverse(sample // 5) + shift) % 1
        assert share == pytest.approx(wanted, abs=1e-12)


def test_lattice_is_even_over_a_round_and_over_the_visits_of_each_reference() -> None:
    lattice = Lattice(seed=3)
    shares = torch.tensor([[lattice.share(0, Visit(p, c)) for p in range(8)] for c in range(16)])
    for one_round in shares.tolist():
        assert strata(one_round, 8) == list(range(8))
        assert strata(one_round[:4], 4) == strata(one_round[4:], 4) == list(range(4))
    for visits in shares.T.tolist():
        assert strata(visits, 16) == list(range(16))


def test_lattice_of_more_samples_begins_with_that_of_fewer() -> None:
    pool = pictures(5, seed=7)
    assert recorded("lattice", pool, 40)[:9] == recorded("lattice", pool, 9)


def test_lattice_of_an_image_among_its_references_counts_the_others_only() -> None:
    pool = torch.cat([pictures(1), pictures(4, seed=7)])
    found = recorded("lattice", pool, 12)
    shift = found[0][1]
    assert Counter(index for index, _ in found) == dict.fromkeys(range(1, 5), 3)
    for sample, (_, share) in enumerate(found):
        wanted = (radical_inverse(sample % 4) + radical_inverse(sample // 4) + shift) % 1
        assert share == pytest.approx(wanted, abs=1e-12)


def test_shift_and_order_come_from_the_seed() -> None:
    pool = pictures(5, seed=7)
    runs = [recorded("lattice", pool, 5, seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0][0][1] != runs[2][0][1]
    assert [index for index, _ in runs[0]] != [index for index, _ in runs[2]]


# -- the expectation -----------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 3, 4, 6, 16])
def test_lattice_is_without_bias_by_enumeration(samples: int) -> None:
    """The mean of a [a < 1/4] is 1/32, whatever the number of samples.

    Between multiples of 1/512 nothing jumps, so the middles of those stretches give the exact mean over all shifts.
    """
    lattice, total, shifts = Lattice(seed=0), 0.0, 512
    for number in range(shifts):
        lattice.shift = (number + 0.5) / shifts
        shares = [lattice.share(sample, visit(sample, 1)) for sample in range(samples)]
        total += sum(share for share in shares if share < 0.25) / samples / shifts
    assert total == pytest.approx(1 / 32, abs=1e-12)


@pytest.mark.filterwarnings("ignore::egcam.ZeroMapWarning")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_mean_over_seeds_is_the_known_answer(sampling: Sampling) -> None:
    """y = min(1, sum of pixels), 3 at the image: from black the gradient is 1 for a < 1/3 and 0 beyond, E[g] = 1/3."""
    image = torch.tensor([[[[0.5, 1.0], [1.5, 0.0]]]], dtype=torch.float64)
    options = {"reference": "black", "samples": 8, "sampling": sampling}
    maps = [along_images(saturated(), LAYER, seed=seed, **options)(image, target=0).maps for seed in range(300)]
    found = torch.stack(maps)[:, 0, 1, 0] / 1.5
    assert float(found.mean()) == pytest.approx(1 / 3, abs=4 * float(found.std()) / 300**0.5)
    assert 0.01 < float(found.std()) < 0.2, "it varies, so the bound says something"


def test_every_reference_is_as_likely_in_monte_carlo_and_comes_again_by_chance() -> None:
    pool = pictures(4, seed=7)
    counts = Counter(index for index, _ in recorded("monte-carlo", pool, 400))
    assert all(60 < counts[index] < 140 for index in range(4)), "100 each, within 4.6 standard deviations"
    rounds = [index for index, _ in recorded("monte-carlo", pool, 400)]
    whole = sum(len(set(rounds[start : start + 4])) == 4 for start in range(0, 400, 4))
    assert whole < 25, "4! / 4^4 = 9 % of rounds hold each reference once"


def test_monte_carlo_draws_are_keyed_by_the_sample_alone() -> None:
    first, second = MonteCarlo(5), MonteCarlo(5)
    assert [first.draw_number(sample) for sample in (3, 1)] == [second.draw_number(sample) for sample in (3, 1)]
    assert first.share(7, Visit(0, 0)) == second.share(7, Visit(3, 9)) != first.share(8, Visit(0, 0))


# -- the gain ------------------------------------------------------------------------------------


def spread_of_means(sampling: Sampling, references: int, samples: int) -> float:
    """Over seeds, of the mean of a step that each reference has somewhere else: sign(a - t_p) c_p."""
    turn = torch.linspace(0.1, 0.9, references)[torch.randperm(references, generator=torch.Generator().manual_seed(1))]
    height = torch.linspace(-1, 2, references)
    means = []
    for seed in range(60):
        plan = scheme(sampling, replicate_sizes(samples), seed)
        order = torch.randperm(references, generator=torch.Generator().manual_seed(seed)).tolist()
        total = 0.0
        for sample in range(samples):
            where = visit(plan.draw_number(sample), references)
            index = order[where.reference]
            total += float(height[index]) * (1.0 if plan.share(sample, where) < float(turn[index]) else -1.0)
        means.append(total / samples)
    return float(torch.tensor(means).std())


def test_lattice_gains_where_each_reference_turns_elsewhere() -> None:
    """With 16 references and 8 visits of each, strata over the visits of a reference are 8 times finer."""
    plain, stratified, lattice = (spread_of_means(name, 16, 128) for name in ("monte-carlo", "stratified", "lattice"))
    assert lattice < 0.5 * stratified
    assert stratified < 0.9 * plain


def test_an_unknown_sampling_names_the_near_ones() -> None:
    with pytest.raises(egcam.EgcamError, match="unknown sampling 'stratifed'; did you mean 'stratified'"):
        egcam.Expected(sampling="stratifed")  # type: ignore[arg-type]
