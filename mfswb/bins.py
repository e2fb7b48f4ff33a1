"""Means and variances of equal parts of quantile functions: what unequal sizes need of each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from mfswb.rows import Rows, in_double, in_type_of, joined, rows_of, segment_dots, squared_norms, taken, tensor_of

# Parts that no more than so many atoms share in are summed atom by atom, wider ones by differences of cumulative sums.
_FEW_ATOMS = 4


class Span(NamedTuple):
    """A quantile function to be cut: where its atoms begin in a row, how many they are, and the number of parts."""

    start: int
    n_atoms: int
    n_parts: int


class Bins(NamedTuple):
    """Equal parts of quantile functions.

    Attributes:
        means: of every part, ``(L, total number of parts)``.
        within: variance within the parts of each quantile function, averaged over them, ``(L, len(spans))``.
    """

    means: Rows
    within: Rows


def cut(atoms: Rows, spans: tuple[Span, ...]) -> Bins:
    r"""Cut quantile functions of equally weighted atoms into equal parts.

    With ``Q`` the quantile function, part ``j`` of ``m`` has the mean ``m \int_{j/m}^{(j+1)/m} Q`` and the variance
    ``m \int_{j/m}^{(j+1)/m} (Q - mean)^2``.

    Args:
        atoms: ``(L, n)``; within each quantile function ascending.
        spans: of each quantile function; they may share atoms.

    Example:
        >>> import numpy as np
        >>> means, within = cut(np.array([[0.0, 3.0, 9.0, 5.0]]), (Span(0, 3, 2), Span(3, 1, 2)))
        >>> means.tolist(), within.tolist()
        ([[1.0, 7.0, 5.0, 5.0]], [[5.0, 0.0]])
    """
    device = tensor_of(atoms).device
    if max(_most_atoms(span) for span in spans) <= _FEW_ATOMS:
        return _atom_by_atom(atoms, spans, _taps(spans, tensor_of(atoms).dtype, device))
    return _by_cumulative_sums(atoms, spans, _edges(spans, device))


class _Taps(NamedTuple):
    """The atoms that share in a part.

    Attributes:
        first: the first of every part, ``(total number of parts,)``.
        others: each further one, and how much of the part is its; likewise.
        parts: number of parts of each quantile function.
        counts: the same as floating-point numbers, ``(len(spans),)``.
    """

    first: Rows
    others: tuple[tuple[Rows, Rows], ...]
    parts: tuple[int, ...]
    counts: Rows


def _atom_by_atom(atoms: Rows, spans: tuple[Span, ...], taps: _Taps) -> Bins:
    # All is measured from a part's first atom: no digits are lost, whatever the offset of the data.
    means = taken(atoms, taps.first)
    shift: Rows = None
    within: Rows = 0.0
    for index, share in taps.others:
        beyond = taken(atoms, index)
        beyond -= means
        pull = beyond * share
        within = within + segment_dots(pull, beyond, taps.parts)
        if shift is None:
            shift = pull
        else:
            shift += pull
    within = within - segment_dots(shift, shift, taps.parts)
    means += shift
    return Bins(means, (within / taps.counts).clip(min=0))


def _most_atoms(span: Span) -> int:
    """At most so many atoms share in a part."""
    whole, rest = divmod(span.n_atoms, span.n_parts)
    return whole + (2 if rest else 0)


@lru_cache(maxsize=256)
def _taps(spans: tuple[Span, ...], dtype: torch.dtype, device: torch.device) -> _Taps:
    most = max(2, *(_most_atoms(span) for span in spans))
    firsts, indices, shares = [], [], []
    for start, n_atoms, n_parts in spans:
        # In units of an atom's mass divided by the number of parts: all edges are whole numbers.
        lower = torch.arange(n_parts, device=device) * n_atoms  # made there: a copy would wait for the device
        upper = lower + n_atoms
        left = lower // n_parts
        atom = left + torch.arange(most, device=device)[:, None]  # (most, n_parts)
        share = (torch.minimum(upper, (atom + 1) * n_parts) - torch.maximum(lower, atom * n_parts)).clamp_(min=0)
        firsts.append(left + start)
        indices.append(atom.clamp_(max=n_atoms - 1) + start)
        shares.append((share.double() / n_atoms).to(dtype))
    index, share = torch.cat(indices, dim=1), torch.cat(shares, dim=1)
    others = tuple((rows_of(index[t].contiguous()), rows_of(share[t].contiguous())) for t in range(1, most))
    parts = tuple(span.n_parts for span in spans)
    return _Taps(rows_of(torch.cat(firsts)), others, parts, _numbers(parts, dtype, device))


class _Edges(NamedTuple):
    """The edges between parts, among cumulative sums of atoms.

    Attributes:
        left: for every edge the atom it cuts.
        rest: minus the share of that atom beyond the edge.
        per_part: parts per atom, for every part, ``(total number of parts,)``: a part's mean by its sum of atoms.
        parts: number of parts of each quantile function.
        counts: the same as floating-point numbers, ``(len(spans),)``.
        atoms: numbers of atoms, likewise.
    """

    left: Rows
    rest: Rows
    per_part: Rows
    parts: tuple[int, ...]
    counts: Rows
    atoms: Rows


def _by_cumulative_sums(atoms: Rows, spans: tuple[Span, ...], edges: _Edges) -> Bins:
    # Sums of squares around a point amid the data keep their digits.
    middle = in_double(atoms[:, atoms.shape[-1] // 2, None])
    values = in_double(atoms)
    values -= middle
    cumulative = rows_of(torch.cumsum(tensor_of(values), dim=-1))  # PyTorch's are three times as fast as NumPy's
    # What lies before an edge: all atoms up to the one it cuts, less the rest of that.
    before = taken(values, edges.left)
    before *= edges.rest
    before += taken(cumulative, edges.left)
    means = _differences(before, edges.parts)
    means *= edges.per_part
    norms = {(span.start, span.n_atoms): squared_norms(values[:, span.start :][:, : span.n_atoms]) for span in spans}
    squares = joined([norms[span.start, span.n_atoms][:, None] for span in spans])
    within = squares / edges.atoms - segment_dots(means, means, edges.parts) / edges.counts
    means += middle
    return Bins(in_type_of(atoms, means), in_type_of(atoms, within.clip(min=0)))


def _differences(before: Rows, parts: tuple[int, ...]) -> Rows:
    """Differences between the edges ``(L, n_parts + 1)`` of each quantile function, one function after the other."""
    if len(set(parts)) == 1:
        before = before.reshape(len(before), len(parts), -1)
        return (before[..., 1:] - before[..., :-1]).reshape(len(before), -1)
    ends = [0, *accumulate(n_parts + 1 for n_parts in parts)]
    return joined([before[:, first + 1 : last] - before[:, first : last - 1] for first, last in pairwise(ends)])


@lru_cache(maxsize=256)
def _edges(spans: tuple[Span, ...], device: torch.device) -> _Edges:
    lefts, rests, per_part = [], [], []
    for start, n_atoms, n_parts in spans:
        edges = torch.arange(n_parts + 1, device=device) * n_atoms
        left = (edges // n_parts).clamp_(max=n_atoms - 1)
        lefts.append(left + start)
        rests.append((edges - left * n_parts).double() / n_parts - 1)
        per_part.append(torch.full((n_parts,), n_parts / n_atoms, dtype=torch.float64, device=device))
    parts = tuple(span.n_parts for span in spans)
    return _Edges(
        left=rows_of(torch.cat(lefts)),
        rest=rows_of(torch.cat(rests)),
        per_part=rows_of(torch.cat(per_part)),
        parts=parts,
        counts=_numbers(parts, torch.float64, device),
        atoms=_numbers([span.n_atoms for span in spans], torch.float64, device),
    )


def _numbers(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> Rows:
    # one by one: a tensor of a list would be copied to the device, and the copy waited for
    return rows_of(torch.stack([torch.full((), float(value), dtype=dtype, device=device) for value in values]))
