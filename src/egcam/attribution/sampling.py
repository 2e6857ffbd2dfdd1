"""Sampling schemes: with which reference and at which share a of the way each sample is taken.

    lattice       a from one randomly shifted lattice over references and their visits
    stratified    a from equal strata of each replicate; replicates share nothing but the order of the references
    monte-carlo   a and the reference drawn independently, sample by sample

All have the same expectation: each a is uniform on [0, 1), each reference as likely as any other. They differ in how
evenly the samples of one run cover both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch

from egcam.attribution.references import Visit
from egcam.errors import SamplingError, check_known
from egcam.rng import generator

Sampling: TypeAlias = Literal["lattice", "stratified", "monte-carlo"]
SAMPLINGS: tuple[Sampling, ...] = ("lattice", "stratified", "monte-carlo")

_MANY = 2**31  # enough draw numbers that taking them modulo a pool's size favours none of its images


class Scheme(ABC):
    """Where the samples of one run are taken; the same for every image that has as many references."""

    def draw_number(self, sample: int) -> int:
        """Which draw from the reference a sample gets; a pool of M images gives the same one every M draws."""
        return sample

    @abstractmethod
    def share(self, sample: int, visit: Visit) -> float:
        """a of a sample, given which reference it visits and how often that one was visited before."""


class MonteCarlo(Scheme):
    """a ~ U(0, 1) and a reference with replacement, each sample for itself."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def draw_number(self, sample: int) -> int:
        """Any draw."""
        return int(torch.randint(_MANY, (), generator=generator(self.seed, "draw", sample), device="cpu"))

    def share(self, sample: int, visit: Visit) -> float:
        """Uniform."""
        return _uniform(self.seed, "share", sample)


class Stratified(Scheme):
    """a = (j + u) / n_r, each stratum j = 0 … n_r - 1 once in every replicate of n_r samples, u ~ U(0, 1)."""

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        self.shares: list[float] = []
        for number, size in enumerate(sizes):
            # Strata are shuffled so that no reference meets the same stretch of the path again and again.
            chance = generator(seed, "strata", number)
            strata = torch.randperm(size, generator=chance, device="cpu").tolist()
            first = len(self.shares)
            self.shares += [(j + _uniform(seed, "share", first + place)) / size for place, j in enumerate(strata)]

    def share(self, sample: int, visit: Visit) -> float:
        """As drawn beforehand."""
        return self.shares[sample]


class Lattice(Scheme):
    """a = v(p) + v(c) + u modulo 1, for visit number c of reference number p, with one u ~ U(0, 1) for the whole run.

    v is van der Corput's sequence 0, 1/2, 1/4, 3/4, …: of 2^k numbers in a row from a multiple of 2^k on, it has one in
    each stratum of width 2^-k. So a is even over the references of one round, and even over the visits of one
    reference. With a single reference all samples are visits of it; with references that never come again all are
    first visits.
    """

    def __init__(self, seed: int) -> None:
        self.shift = _uniform(seed, "lattice")

    def share(self, sample: int, visit: Visit) -> float:
        """v(p) + v(c) + u modulo 1."""
        return (radical_inverse(visit.reference) + radical_inverse(visit.number) + self.shift) % 1.0


class Midpoints(Scheme):
    """a = (s + 1/2) / n, without chance."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def share(self, sample: int, visit: Visit) -> float:
        """The middle of stratum s."""
        return (sample + 0.5) / self.samples


def radical_inverse(number: int) -> float:
    """Van der Corput's sequence in base 2: the binary digits of a number, mirrored at the point.

    >>> [radical_inverse(number) for number in range(5)]
    [0.0, 0.5, 0.25, 0.75, 0.125]
    """
    inverse, digit = 0.0, 0.5
    while number:
        inverse += digit * (number & 1)
        number >>= 1
        digit /= 2
    return inverse


def scheme(sampling: Sampling, sizes: Sequence[int], seed: int) -> Scheme:
    """The scheme of that name for replicates of these sizes."""
    check_known(sampling, SAMPLINGS, "sampling", SamplingError)
    if sampling == "lattice":
        return Lattice(seed)
    return MonteCarlo(seed) if sampling == "monte-carlo" else Stratified(sizes, seed)


def _uniform(seed: int, *key: int | str) -> float:
    return float(torch.rand((), generator=generator(seed, *key), dtype=torch.float64, device="cpu"))
