"""Where on the image the cells of a layer's map lie, by measurement.

Shapes tell how a layer's output becomes a map as long as a network keeps to the usual: rows before columns, tokens row
by row behind the class token, the whole image. So the reading is checked once for a layer and a size of images.

Signs s = ±1, times a small number, are added to the image x inside windows w_j along each axis, and the network is run
up to the layer. The windows are hats around a few nodes c_j from 0 to 1, so that at any place t of the axis
sum_j w_j(t) = 1 and sum_j c_j w_j(t) = t. What a position p of the layer's output changes by,
E_j(p) = |A_p(x + s sqrt(w_j)) - A_p(x)|^2, then shows where on the image the middle of what it sees lies:

    t_p = sum_j c_j E_j(p) / sum_j E_j(p)

By these places the axes of a map are told apart, and of tokens the grid, its order, and those which lie on none. Maps
whose cells see other places than their own are refused. Where everything depends on everything alike, as after global
attention with the weights of chance, all t_p are about 1/2: then nothing is said, and the reading stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from egcam.errors import LayerError
from egcam.rng import generator, like

Axis: TypeAlias = Literal["channels-first", "channels-last"]
Grid: TypeAlias = tuple[int, ...]

_EVEN = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64, device="cpu")
_STRENGTH = {torch.float16: 0.5, torch.bfloat16: 0.5}  # in standard deviations of the image, by the layer's precision
_USUAL_STRENGTH = 0.05
_SLIGHT = 2e-3  # of that, where what merges or sorts tokens must not decide differently
_DEAD = 1e-8  # the share of a window of which nothing comes through; of what does, 1e-3 and more was measured
_MOST_OTHERS = 16
_CERTAIN, _CLEAR, _DISORDERED = 0.95, 0.9, 0.6  # shares of the tokens' places that a grid accounts for
_LEAST_SLOPE = 0.2
_FEWEST = 16
_SHARP = 0.2  # how far what a token sees reaches, where 1 is the whole image
_TURNED = 0.4  # by how much better axes must follow the image's in another order; 1 is an axis
_STRETCHED = 1.2  # how much faster than the map's cells their places may run over the image
_SCATTERED, _APART = 0.5, 0.1  # the share of the places' differences that the cells account for, and what is left over
_ANOTHER_AXIS = 0.2  # how much more must show that another axis holds the channels


@dataclass(frozen=True)
class Order:
    """Which axes of (N, ., ., .) hold the channels and the map's dimensions, and which of the latter run backwards."""

    axes: tuple[int, ...]
    mirrored: tuple[int, ...] = ()


@dataclass(frozen=True)
class Picked:
    """Which of the tokens (N, length, channels) is the cell of a grid, cell by cell, row by row."""

    grid: Grid
    tokens: tuple[int, ...]


Way: TypeAlias = Axis | Grid | Order | Picked
"""How a layer's output becomes a map; a grid is that of the last tokens, row by row."""

Run: TypeAlias = Callable[[Tensor], Tensor]


def arranged(tensor: Tensor, way: Way) -> Tensor:
    """A layer's output as (N, K, h, w).

    >>> arranged(torch.zeros(1, 8, 101, 12), Order((1, 3, 2))).shape
    torch.Size([1, 8, 12, 101])
    >>> arranged(torch.arange(5.0).reshape(1, 5, 1), Picked((2, 2), (0, 1, 2, 3)))
    tensor([[[[0., 1.],
              [2., 3.]]]])
    """
    if isinstance(way, Picked):
        kept = tensor[:, list(way.tokens)].transpose(1, 2)
        return kept.reshape(len(tensor), tensor.shape[2], *way.grid)
    if isinstance(way, Order):
        turned = tensor.permute(0, *way.axes)
        return turned.flip([2 + axis for axis in way.mirrored]) if way.mirrored else turned
    if isinstance(way, tuple):
        return _tokens_to_map(tensor, way)
    return tensor.movedim(-1, 1) if way == "channels-last" else tensor


def _tokens_to_map(tokens: Tensor, grid: Grid) -> Tensor:
    if tokens.ndim != 3:
        raise LayerError(f"tokens are a layer's output (N, length, channels), and it is {tuple(tokens.shape)}")
    if tokens.shape[1] < prod(grid):
        raise LayerError(f"{tokens.shape[1]} tokens cannot fill a grid of {' x '.join(map(str, grid))}")
    patches = tokens[:, tokens.shape[1] - prod(grid) :]
    return patches.transpose(1, 2).reshape(tokens.shape[0], tokens.shape[2], *grid)


def settled(way: Way, plain: Tensor, image: Tensor, run: Run, layer: str) -> Way:
    """The reading of a layer's output, confirmed or mended, or an error that says what was seen.

    Args:
        way: the reading as shapes and modules tell it.
        plain: (1, …) what the layer outputs for the image.
        image: (1, C, H, W), or a signal or volume likewise.
        run: from (B, C, H, W) to what the layer outputs, (B, …).
        layer: its name, for errors.
    """
    look = _measured(way, plain, image, run)
    if look is None:
        return way
    if isinstance(way, tuple | Picked):
        better = _on_grid(look, way)
        if better is None:
            return _closer(way, plain, image, run, layer)
    else:
        better = _in_order(look, way)
    if better != way:
        # What the network never looks at is told by the cells of the map as it is read now.
        look = _measured(better, plain, image, run)
    if look is not None:
        _refuse_crop(look, better, image, run, layer)
        _refuse_elsewhere(look, better, plain, image, run, layer)
    return better


def seen_at(way: Way, plain: Tensor, image: Tensor, run: Run) -> str:
    """What shows that a map, read in a way, does not lie over the image."""
    look = _measured(way, plain, image, run)
    if look is None:
        return "nothing"
    places, at = _places_and_cells(look, way)
    corner = torch.tensor([0.3 if axis % 2 == 0 else 0.8 for axis in range(len(places))], dtype=torch.float64)
    cell = int((places - corner[:, None]).square().sum(0).argmin())
    return f"what lies about {_in_words(places[:, cell])} of the image changes the map at {_in_words(at[:, cell])}"


def _in_words(place: Tensor) -> str:
    return f"({', '.join(f'{float(share):.2f}' for share in place)})"


# -- what the layer changes by ------------------------------------------------------------------


@dataclass(frozen=True)
class _Look:
    """How much a layer changes by, for each window of each axis."""

    changes: Tensor  # (windows, …) squared, as the layer outputs it
    nodes: tuple[Tensor, ...]  # of the windows of each axis
    cells: tuple[int, ...]  # of the map, along each axis

    def of_axis(self, axis: int, changes: Tensor) -> Tensor:
        start = sum(len(nodes) for nodes in self.nodes[:axis])
        return changes[start : start + len(self.nodes[axis])]


def _measured(way: Way, plain: Tensor, image: Tensor, run: Run, closer: int = 0) -> _Look | None:
    """None where nothing changes, or something that is no number."""
    cells = tuple(arranged(plain, way).shape[2:])
    sides = tuple(image.shape[2:])
    nodes = tuple(_nodes(side, count, len(sides)) for side, count in zip(sides, cells, strict=True))
    nodes = tuple(_EVEN for _ in sides) if closer else nodes
    noise = _noise(image, plain.dtype, closer) * (_SLIGHT if closer else 1)
    rows = [
        image + noise * _along(axis, window.sqrt(), image)
        for axis, side in enumerate(sides)
        for window in _hats(nodes[axis], side)
    ]
    changes = _changes_by(rows, image, run)
    if changes is None or not bool(changes.isfinite().all()) or not bool(changes.any()):
        return None
    return _Look(changes, nodes, cells)


def _nodes(side: int, cells: int, dimensions: int) -> Tensor:
    """The places of the windows along an axis: its ends, and a quarter of a cell from these."""
    if dimensions > 2:
        return torch.tensor([0.0, 1.0], dtype=torch.float64)
    rim = min(1 / 3, max(1 / (4 * cells), 1 / side))
    return torch.tensor([0.0, rim, 1 - rim, 1.0], dtype=torch.float64)


def _hats(nodes: Tensor, side: int) -> list[Tensor]:
    """(side,) for each node: 1 there, falling to 0 at the next ones."""
    at = _middles(side).numpy()
    return [torch.from_numpy(np.interp(at, nodes.numpy(), hat)) for hat in np.eye(len(nodes))]


def _middles(count: int) -> Tensor:
    return (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) / count


def _along(axis: int, weights: Tensor, image: Tensor) -> Tensor:
    shape = [1] * image.ndim
    shape[2 + axis] = len(weights)
    return like(weights, image).reshape(shape)


def _noise(image: Tensor, precision: torch.dtype, number: int = 0) -> Tensor:
    """Signs, of a strength that the network takes for a small change and rounding does not hide."""
    signs = torch.randint(0, 2, image.shape, generator=generator(number, "places"), device="cpu") * 2.0 - 1
    scale = float(image.float().std()) or float(image.abs().max()) or 1.0
    noise: Tensor = like(signs, image) * (_STRENGTH.get(precision, _USUAL_STRENGTH) * scale)
    return noise


def _changes_by(rows: list[Tensor], image: Tensor, run: Run) -> Tensor | None:
    """(rows, …) the squares of what the layer changes by; None where it does not output something for each image."""
    outputs = None
    with suppress(Exception):  # a network for one image at a time
        outputs = run(torch.cat([image, *rows]))
    if outputs is None or len(outputs) != 1 + len(rows):
        outputs = torch.cat([run(row) for row in [image, *rows]])
    if len(outputs) != 1 + len(rows):
        return None
    return (outputs[1:].float() - outputs[:1].float()).square().cpu().double()


def _centres(look: _Look, changes: Tensor) -> tuple[Tensor, Tensor]:
    """(axes, positions) the middle of what a position sees, and how far that reaches; NaN where it sees nothing.

    Args:
        changes: (windows, positions).
    """
    middles, reaches = [], []
    for axis, nodes in enumerate(look.nodes):
        energies = look.of_axis(axis, changes)
        weights = energies / energies.sum(0)
        middle = nodes @ weights
        # A point between two nodes, too, shows in both of their windows.
        after = torch.searchsorted(nodes, middle.nan_to_num(0.5).contiguous()).clamp(1, len(nodes) - 1)
        of_point = (middle - nodes[after - 1]) * (nodes[after] - middle)
        middles.append(middle)
        reaches.append(nodes.square() @ weights - middle.square() - of_point)
    return torch.stack(middles), torch.stack(reaches)


# -- maps: which axis is which ------------------------------------------------------------------


def _in_order(look: _Look, way: Way) -> Way:
    """The order of the axes in which each follows its own of the image."""
    axes = range(1, look.changes.ndim)
    # As the map is read now.
    usual = way if isinstance(way, Order) else Order((axes[-1], *axes[:-1]) if way == "channels-last" else tuple(axes))
    follows: dict[int, list[float]] = {axis: _followed(look, axis).tolist() for axis in axes}

    def shown(order: tuple[int, ...]) -> float:
        followed = sum(abs(follows[axis][place]) for place, axis in enumerate(order[1:]))
        return followed - _ANOTHER_AXIS * (order[0] != usual.axes[0])

    orders = permutations(axes, 1 + len(look.nodes))
    best = max(orders, key=lambda order: (shown(order), order == usual.axes))
    backwards = [place for place, axis in enumerate(best[1:]) if follows[axis][place] < -_TURNED / 2]
    as_it_is = sum(
        follows[axis][place] * (-1 if place in usual.mirrored else 1) for place, axis in enumerate(usual.axes[1:])
    )
    return Order(best, tuple(backwards)) if shown(best) - as_it_is > _TURNED else way


def _followed(look: _Look, axis: int) -> Tensor:
    """For each of the image's axes how well one of the layer's follows it: the slope times the correlation, -1 to 1."""
    count = look.changes.shape[axis]
    others = [other for other in range(1, look.changes.ndim) if other != axis]
    middles = _centres(look, look.changes.sum(others) if others else look.changes)[0].nan_to_num(0.5)
    at, apart = _middles(count) - 0.5, middles - middles.mean(1, keepdim=True)
    square, product = float(at @ at), apart @ at
    if square == 0:
        return torch.zeros(len(look.nodes), dtype=torch.float64)
    correlation = product / (apart.square().sum(1).sqrt() * square**0.5).clamp_min(1e-12)
    followed: Tensor = product / square * correlation.abs()
    return followed


# -- tokens: which is which cell ----------------------------------------------------------------


@dataclass(frozen=True)
class _Fit:
    """How tokens lie on a grid."""

    share: float  # of the differences between the tokens' places that it accounts for
    slopes: tuple[float, ...]  # along each axis of the image, 1 where tokens see only their cell; NaN for one cell
    tokens: Tensor  # their numbers, in the order they run along the grid
    grid: Grid  # along the image's axes
    axes: tuple[int, ...]  # which of these the tokens run along, the slowest first


def _on_grid(look: _Look, way: Grid | Picked) -> Way | None:
    """The tokens that account best for the places that were measured; None where no grid does."""
    places = (_centres(look, look.changes.sum(-1))[0] - 0.5).nan_to_num(0.0)
    usual = tuple(range(len(look.cells)))
    as_it_is = _best_fit(places, _tokens_of(way, places.shape[1])[None], look.cells, usual)
    if any(slope < -_LEAST_SLOPE for slope in as_it_is.slopes):
        as_it_is = replace(as_it_is, share=0.0)
    if as_it_is.share > _CERTAIN:
        return way
    best = max(_possible(places), key=lambda fit: fit.share)
    is_clear = best.share > _CLEAR and all(not abs(slope) < _LEAST_SLOPE for slope in best.slopes)
    if is_clear and 1 - as_it_is.share > 2 * (1 - best.share) + 1 - _CERTAIN:
        return _picked(best)
    return way if best.share > _DISORDERED else None


def _tokens_of(way: Grid | Picked, count: int) -> Tensor:
    if isinstance(way, Picked):
        return torch.tensor(way.tokens, device="cpu")
    return torch.arange(count - prod(way), count, device="cpu")


def _closer(way: Grid | Picked, plain: Tensor, image: Tensor, run: Run, layer: str) -> Way:
    """The reading after two closer looks, or an error where tokens see a place each and lie on no grid.

    Of a few cells chance makes what looks like disorder, and where each token sees everything nothing can be told.
    """
    looks = _closer_looks(way, plain, image, run)
    if len(looks) < 2 or prod(looks[0].cells) < _FEWEST:
        return way
    both = replace(looks[0], changes=looks[0].changes + looks[1].changes)
    better = _on_grid(both, way)
    if better is not None:
        return better
    if not _is_sharp(looks, [look.changes.sum(-1) for look in looks]):
        return way
    middles, _ = _centres(looks[0], looks[0].changes.sum(-1))
    tokens = _tokens_of(way, middles.shape[1])
    places = middles[:, tokens]
    pair = int((places[:, 1:] - places[:, :-1]).square().sum(0).nan_to_num(0.0).argmax())
    raise LayerError(
        f"the tokens of layer {layer!r} are on no grid over the image, as where they were merged or shuffled: token "
        f"{int(tokens[pair])} shows what lies about {_in_words(places[:, pair])} of it, the next token "
        f"{_in_words(places[:, pair + 1])}. Choose a layer in front of that step, or pass a callable reshape that puts "
        "the tokens in order"
    )


def _closer_looks(way: Way, plain: Tensor, image: Tensor, run: Run) -> list[_Look]:
    return [look for look in (_measured(way, plain, image, run, closer) for closer in (1, 2)) if look is not None]


def _is_sharp(looks: list[_Look], changes: list[Tensor]) -> bool:
    """Whether most positions see no more than a place each, and the same one in both looks."""
    (middles, reaches), (again, _) = (_centres(*look) for look in zip(looks, changes, strict=True))
    apart = float((middles - again).square().sum(0).nanmedian())
    return max(float(reaches.sum(0).nanmedian()), apart) <= _SHARP * len(middles) / 12


def _possible(places: Tensor) -> Iterator[_Fit]:
    """Grids of the tokens but a few, which are in front, behind, on both sides, or in the middle as a block."""
    axes, count = places.shape
    for others in range(min(_MOST_OTHERS, count - 2) + 1):
        kept = torch.arange(count - others, device="cpu")
        blocks = kept + torch.arange(others + 1, device="cpu")[:, None]
        around = kept + others * (kept >= len(kept) // 2)
        for grid in _grids(len(kept), axes):
            for order in permutations(range(axes)):
                yield _best_fit(places, torch.cat([blocks, around[None]]), grid, order)


def _grids(cells: int, axes: int) -> list[Grid]:
    """All of that many cells."""
    if axes == 1:
        return [(cells,)]
    sides = [side for side in range(1, cells + 1) if cells % side == 0]
    return [(side, *rest) for side in sides for rest in _grids(cells // side, axes - 1)]


def _best_fit(places: Tensor, blocks: Tensor, grid: Grid, axes: tuple[int, ...]) -> _Fit:
    """Which of some blocks of tokens (blocks, cells) lies best on a grid, and how well.

    What tokens see beside their cell, padding and attention move their places towards the middle, and strides by up to
    half a cell. Tokens that are left out should lie nowhere: their places count as unaccounted for.

    Args:
        places: (axes, tokens) from -1/2 to 1/2; 0 for those that see nothing.
        blocks: (blocks, cells) numbers of tokens.
        grid: its sides, in the order of `axes`.
        axes: of the image, along which the tokens run, the slowest first.
    """
    at = _coordinates(grid, axes)
    square = at.square().sum(1)[:, None]
    chosen = places[:, blocks]
    product, mean = torch.einsum("abn,an->ab", chosen, at), chosen.mean(2)
    sides = [side for _, side in sorted(zip(axes, grid, strict=True))]
    half = 0.5 / torch.tensor(sides, dtype=torch.float64, device="cpu")[:, None]
    offset = mean.clamp(-half, half)
    slopes = product / square
    accounted = (slopes * product).nan_to_num(0.0) + len(at.T) * offset * (2 * mean - offset)
    shares = accounted.sum(0) / places.square().sum().clamp_min(1e-12)
    best = int(shares.argmax())
    return _Fit(float(shares[best]), tuple(slopes[:, best].tolist()), blocks[best], tuple(sides), axes)


def _coordinates(grid: Grid, axes: tuple[int, ...]) -> Tensor:
    """(axes, cells) where on the image, from -1/2 to 1/2, the cells of a grid lie that runs along these axes."""
    sides = [_middles(side) - 0.5 for side in grid]
    mesh: tuple[Tensor, ...] = torch.meshgrid(*sides, indexing="ij")
    return torch.stack([mesh[axes.index(axis)].flatten() for axis in range(len(grid))])


def _picked(fit: _Fit) -> Picked:
    cells = fit.tokens.reshape([fit.grid[axis] for axis in fit.axes])
    cells = cells.permute([fit.axes.index(axis) for axis in range(cells.ndim)])
    cells = cells.flip([axis for axis, slope in enumerate(fit.slopes) if slope < 0])
    return Picked(fit.grid, tuple(cells.flatten().tolist()))


# -- maps that lie elsewhere --------------------------------------------------------------------


def _refuse_elsewhere(look: _Look, way: Way, plain: Tensor, image: Tensor, run: Run, layer: str) -> None:
    """A network that pads, rolls, warps or shuffles its input, so that the map's cells see other places than theirs.

    The places follow the cells, t = a + b u, with b <= 1: what a cell sees beside its place moves t to the middle. That
    cells see no more than a place each takes a closer look, as what sees everything has its middle anywhere.
    """
    if not _elsewhere(look, way).any():
        return
    closer = _closer_looks(way, plain, image, run)
    if len(closer) < 2 or not _is_sharp(closer, [arranged(look.changes, way).sum(1).flatten(1) for look in closer]):
        return
    wrong = _elsewhere(look, way) & _elsewhere(closer[0], way) & _elsewhere(closer[1], way)
    if wrong.any():
        places, at = _places_and_cells(closer[0], way)
        cell = int((places - at)[wrong].square().sum(0).nan_to_num(0.0).argmax())
        raise LayerError(
            f"the map of layer {layer!r} does not lie over the image: what lies about {_in_words(places[:, cell])} of "
            f"it changes the map at {_in_words(at[:, cell])}, as where the network pads, rolls, warps or shuffles what "
            "it gets. Choose a layer in front of that step, or do the same to the images first and explain the network "
            "without it"
        )


def _elsewhere(look: _Look, way: Way) -> Tensor:
    """(axes,) along which cells lie elsewhere than what they see: beyond the image's ends, or in another order."""
    places, at = _places_and_cells(look, way)
    strength = arranged(look.changes, way).sum((0, 1)).flatten()
    asked = strength > 1e-3 * strength.max()
    if int(asked.sum()) < _FEWEST:
        return torch.zeros(len(places), dtype=torch.bool, device="cpu")
    places, at = places[:, asked], at[:, asked]
    centred, apart = at - at.mean(1, keepdim=True), places - places.mean(1, keepdim=True)
    slopes = (centred * apart).sum(1) / centred.square().sum(1)
    accounted = (slopes[:, None] * centred).square().mean(1)
    left = (apart - slopes[:, None] * centred).square().mean(1)
    cells = torch.tensor(look.cells, device="cpu")
    stretched = (slopes > _STRETCHED) & ((places - at).abs().amax(1) > 1 / cells) & (cells > 3)
    scattered = (left > _APART**2) & (accounted < _SCATTERED * (accounted + left)) & (cells > 3)
    return stretched | scattered


def _places_and_cells(look: _Look, way: Way) -> tuple[Tensor, Tensor]:
    """(axes, cells) the middle of what each cell of the map sees, and where it lies, from 0 to 1."""
    places = _centres(look, arranged(look.changes, way).sum(1).flatten(1))[0]
    return places, _coordinates(look.cells, tuple(range(len(look.cells)))) + 0.5


# -- what the network never looks at ------------------------------------------------------------


def _refuse_crop(look: _Look, way: Way, image: Tensor, run: Run, layer: str) -> None:
    """A network that crops its input, and spreads what is left over the whole map."""
    changes = arranged(look.changes, way).sum(1)
    names = ("rows", "columns") if len(look.nodes) == 2 else ("places",)
    looked_at = []
    for axis, nodes in enumerate(look.nodes):
        windows = look.of_axis(axis, changes).flatten(1).sum(1)
        if len(nodes) < 4 or look.cells[axis] < 2 or float((windows / windows.sum())[[0, -1]].min()) > _DEAD:
            continue
        cell = 1 / look.cells[axis]
        low, high = _extent(axis, cell, image, run)
        if (low >= cell / 4 or high <= 1 - cell) and _is_spread(look, changes, axis, low, high):
            looked_at.append(f"the {names[axis]} from {low:.2f} to {high:.2f}")
    if looked_at:
        raise LayerError(
            f"the network looks only at {' and '.join(looked_at)} of the image, as where it crops its input, and layer "
            f"{layer!r} spreads these over its whole map: heat would be drawn where it never looks. Crop the images "
            "first, and explain the network without that step"
        )


def _extent(axis: int, cell: float, image: Tensor, run: Run) -> tuple[float, float]:
    """The part of an axis that the layer sees anything of, in shares of it; all, if it misses less than a cell.

    Of a grid of whole patches less than a cell may be left over at the end.
    """
    side = image.shape[2 + axis]
    noise, plain = _noise(image, torch.float32), run(image)
    numbers = torch.arange(side, device="cpu")

    def is_seen(inside: Tensor) -> bool:
        return not torch.equal(run(image + noise * _along(axis, inside.double(), image)), plain)

    if is_seen(numbers < cell / 4 * side) and is_seen(numbers >= (1 - cell) * side):
        return 0.0, 1.0

    def unseen(is_seen_beyond: Callable[[int], bool]) -> int:
        """The most pixels at an end of which nothing comes through."""
        few, many = 0, side
        while many - few > 1:
            between = (few + many) // 2
            few, many = (few, between) if is_seen_beyond(between) else (between, many)
        return few

    low = unseen(lambda count: is_seen(numbers < count))
    high = unseen(lambda count: is_seen(numbers >= side - count))
    return low / side, 1 - high / side


def _is_spread(look: _Look, changes: Tensor, axis: int, low: float, high: float) -> bool:
    """Whether the map's cells see what lies between two places rather than what lies at their own."""
    others = [1 + other for other in range(len(look.cells)) if other != axis]
    along = changes.sum(others) if others else changes
    middles = _centres(look, along)[0][axis]
    alive = look.of_axis(axis, along).sum(0)
    kept = alive > 1e-3 * alive.max()
    at = _middles(len(middles))
    slope = (middles[kept] * (at[kept] - at[kept].mean())).sum() / (at[kept] - at[kept].mean()).square().sum()
    spread = low + (high - low) * at
    uncropped, cropped = ((middles - where)[kept].square().sum() for where in (at, spread))
    return bool(slope > 0.1) and bool(cropped < uncropped)
