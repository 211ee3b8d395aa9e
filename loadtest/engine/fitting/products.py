"""Matrix products of any width from those that were measured."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from loadtest.engine.fitting.shapes import Precision, Product
from loadtest.engine.fitting.sources import read_gemm
from loadtest.engine.fitting.systems import System

Slice = dict[tuple[int, int], float]
"""Seconds by outer and inner dimension, at one number of tokens."""


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """Seconds of products by tokens and dimensions."""

    slices: dict[int, Slice]
    outers: tuple[int, ...]
    inners: tuple[int, ...]

    @property
    def sizes(self) -> list[int]:
        """The numbers of tokens that were measured, rising."""
        return sorted(self.slices)

    def seconds(self, product: Product, tokens: int) -> float:
        """One product, interpolated linearly between the measured dimensions that enclose its own.

        One that is wider than any measured takes time in proportion to its width, for by then its weights fill the
        memory's bandwidth or its operations the tensor cores.
        """
        measured = self.slices[tokens]
        widest = self.outers[-1]
        outers = _enclosing(self.outers, min(product.outer, widest))
        inners = _enclosing(self.inners, product.inner)
        by_outer = [np.interp(product.inner, inners, [measured[outer, inner] for inner in inners]) for outer in outers]
        return max(1.0, product.outer / widest) * float(np.interp(product.outer, outers, by_outer))


@cache
def product_times(data: Path, system: System, precision: Precision) -> ProductTimes:
    """The measured products of one system; `LookupError` where the precision was not measured."""
    slices: dict[int, Slice] = {}
    for (tokens, outer, inner), seconds in sorted(read_gemm(data, system, precision).items()):
        slices.setdefault(tokens, {})[outer, inner] = seconds
    dimensions = [pair for measured in slices.values() for pair in measured]
    outers, inners = ({pair[axis] for pair in dimensions} for axis in (0, 1))
    return ProductTimes(slices, tuple(sorted(outers)), tuple(sorted(inners)))


def _enclosing(sizes: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    at = bisect_left(sizes, wanted)
    return (wanted,) if sizes[at] == wanted else (sizes[at - 1], sizes[at])
