"""Filters of images, lines and rows: how they are added, and put one after the other.

Their matrices are made when they are asked for, in double precision: most filters never are.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product

import torch

#: A row and a column, relative to those of an output.
Place = tuple[int, int]
Taps = Mapping[Place, torch.Tensor]


@dataclass(frozen=True)
class Filter:
    """A filter: the places that it reads around an output, with a matrix for each of them.

    Of a matrix, ``outputs`` are the rows and ``inputs`` the columns, those of one group. ``make``
    computes the matrices.
    """

    places: frozenset[Place]
    outputs: int
    inputs: int
    groups: int
    make: Callable[[], Taps]
    strides: Place = (1, 1)

    @property
    def is_scale(self) -> bool:
        """Whether it only multiplies each channel."""
        alone = self.strides == (1, 1) and self.places == {(0, 0)}
        return alone and self.groups == self.outputs and self.inputs == 1

    @property
    def lattice(self) -> list[range]:
        """The rows and columns of the smallest even grid that has all places."""
        return [_find_grid(each) for each in zip(*self.places, strict=True)]

    @property
    def work(self) -> int:
        """Multiplications for an output."""
        return self.inputs * math.prod(map(len, self.lattice))

    def spread(self, groups: int) -> "Filter":
        """The same filter in fewer groups."""
        many = self.groups // groups

        def widen(matrix: torch.Tensor) -> torch.Tensor:
            blocks = matrix.view(groups, many, -1, self.inputs)
            wide = blocks.new_zeros(*blocks.shape[:3], many, self.inputs)
            wide.diagonal(dim1=1, dim2=3).copy_(blocks.permute(0, 2, 3, 1))
            return wide.view(self.outputs, -1)

        if many == 1:
            return self
        make = lambda: {place: widen(matrix) for place, matrix in self.make().items()}  # noqa: E731
        return replace(self, inputs=self.inputs * many, groups=groups, make=make)

    def scale(self, factors: torch.Tensor) -> "Filter":
        """The filter with each output multiplied by a factor."""

        def make() -> Taps:
            return {place: matrix * factors[:, None] for place, matrix in self.make().items()}

        return replace(self, make=make)

    def add(self, other: "Filter") -> "Filter":
        """The sum of two filters with the same strides."""
        groups = math.gcd(self.groups, other.groups)
        one, two = self.spread(groups), other.spread(groups)
        make = lambda: _collect([*one.make().items(), *two.make().items()])  # noqa: E731
        return replace(one, places=one.places | two.places, make=make)

    def after(self, first: "Filter") -> "Filter":
        """The filter of what another one computes."""
        groups = math.gcd(self.groups, first.groups)
        one, two = first.spread(groups), self.spread(groups)
        (down, right), (rows, columns) = first.strides, self.strides

        def move(near: Place, far: Place) -> Place:
            return near[0] + down * far[0], near[1] + right * far[1]

        def make() -> Taps:
            pairs = product(one.make().items(), two.make().items())
            return _collect(
                (move(near, far), multiply(after, before, groups))
                for (near, before), (far, after) in pairs
            )

        places = frozenset(move(*pair) for pair in product(one.places, two.places))
        strides = (down * rows, right * columns)
        return Filter(places, self.outputs, one.inputs, groups, make, strides)


def _find_grid(places: Iterable[int]) -> range:
    first, *later = sorted(places)
    step = math.gcd(*(place - first for place in later)) or 1
    return range(first, max(later, default=first) + 1, step)


def _collect(taps: Iterable[tuple[Place, torch.Tensor]]) -> Taps:
    """Matrices by their place; those of one place are added."""
    result: dict[Place, torch.Tensor] = {}
    for place, matrix in taps:
        result[place] = result[place] + matrix if place in result else matrix
    return result


def multiply(matrix: torch.Tensor, other: torch.Tensor, groups: int) -> torch.Tensor:
    """The product of matrices of several groups."""
    one, two = (each.view(groups, len(each) // groups, -1) for each in (matrix, other))
    return (one @ two).flatten(0, 1)
