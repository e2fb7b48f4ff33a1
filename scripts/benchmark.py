"""Time one optimisation step of ours against a plain autograd implementation and against POT, in one process.

    python scripts/benchmark.py [--quick] [--large] [--threads N] [--json FILE]

A step is the value of the loss and its gradient with respect to the support, along fresh directions, in float32. The
implementations take turns in blocks of steps, so that a busy moment of the machine hits all of them; the figures are
medians over all steps and their ratios. POT's is its sliced distance with the torch backend, squared and averaged over
the marginals, whatever the loss. The lower bound is the time of the sorts alone: K * L value sorts and L argsorts of n
numbers, with the fastest sort at hand. Memory is what a step adds to the process at its peak (on Linux).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mfswb import sliced_costs
from mfswb.geometry import Geometry
from mfswb.loss_gradients import value_and_gradient
from mfswb.losses import LOSSES
from mfswb.rows import argsort_rows, rows_of, sort_rows
from mfswb.slicing import uniform


@dataclass(frozen=True)
class Case:
    """One problem: sizes of the marginals, of the support, directions, dimension and loss."""

    sizes: tuple[int, ...]
    n: int
    n_projections: int
    d: int
    loss: str
    varies: str = ""

    def __str__(self) -> str:
        shape = str(self.sizes[0]) if len(set(self.sizes)) == 1 else "/".join(map(str, self.sizes))
        return f"K={len(self.sizes)} n={self.n} n_k={shape} L={self.n_projections} d={self.d} {self.loss}"


@dataclass(frozen=True)
class Result:
    """Median milliseconds a step."""

    case: str
    ours_ms: float
    plain_ms: float
    pot_ms: float
    sorts_ms: float
    ours_mib: float
    plain_mib: float
    steps: int

    @property
    def speedup(self) -> float:
        """How many times faster than plain autograd."""
        return self.plain_ms / self.ours_ms


def plain_costs(support: Tensor, marginals: Sequence[Tensor], directions: Tensor) -> Tensor:
    """The cost matrix as one would write it at first: matmul, torch.sort, autograd through everything."""
    ranked = torch.sort(directions @ support.t(), dim=-1).values
    rows = []
    for marginal in marginals:
        atoms = torch.sort(directions @ marginal.t(), dim=-1).values
        if atoms.shape != ranked.shape:
            rows.append(_unequal(ranked, atoms))
        else:
            rows.append((ranked - atoms).square().mean(dim=-1))
    return torch.stack(rows)


def pot_value(support: Tensor, marginals: Sequence[Tensor], directions: Tensor) -> Tensor:
    """POT's sliced distance, squared, on average over the marginals."""
    import ot

    found = [ot.sliced_wasserstein_distance(support, y, projections=directions.t(), p=2).square() for y in marginals]
    return torch.stack(found).mean()


def peak_mib(work: Callable[[], None]) -> float:
    """MiB that ``work`` adds to the resident memory of the process at its peak; NaN where Linux does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return float("nan")

    def told(field: str) -> float:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024

    before = told("VmRSS")
    work()
    return told("VmHWM") - before


def _unequal(ranked: Tensor, atoms: Tensor) -> Tensor:
    n, m = ranked.shape[-1], atoms.shape[-1]
    first = torch.arange(1, n + 1, dtype=torch.float64) / n
    second = torch.arange(1, m + 1, dtype=torch.float64) / m
    ends = torch.cat([first, second]).sort().values
    widths = ends.diff(prepend=torch.zeros(1, dtype=torch.float64)).float()
    i = torch.searchsorted(first, ends).clamp(max=n - 1)
    j = torch.searchsorted(second, ends).clamp(max=m - 1)
    return ((ranked[:, i] - atoms[:, j]).square() * widths).sum(dim=-1)


def direct_costs(prior: Tensor, classes: Sequence[Tensor], directions: Tensor) -> Tensor:
    """Class by class: cumulative weights, searchsorted and gather along every direction, and autograd through it."""
    x = torch.sort(directions @ prior.t(), dim=-1).values
    rows = []
    for points in classes:
        y = torch.sort(directions @ points.t(), dim=-1).values
        first = torch.full_like(x, 1 / x.shape[-1]).cumsum(-1)
        second = torch.full_like(y, 1 / y.shape[-1]).cumsum(-1)
        ends = torch.cat([first, second], dim=-1).sort(dim=-1).values
        i = torch.searchsorted(first, ends).clamp(max=x.shape[-1] - 1)
        j = torch.searchsorted(second, ends).clamp(max=y.shape[-1] - 1)
        widths = ends.diff(dim=-1, prepend=torch.zeros_like(ends[:, :1]))
        rows.append(((x.gather(-1, i) - y.gather(-1, j)).square() * widths).sum(dim=-1))
    return torch.stack(rows)


def fairness_term(n_projections: int, rounds: int) -> str:
    """The autoencoder's term: a prior sample of 1000, ten classes of unequal size, gradient by the classes' latents."""
    generator = torch.Generator().manual_seed(0)
    sizes = [99, 112, 99, 102, 97, 90, 99, 104, 98, 100]
    prior = torch.randn(sum(sizes), 2, generator=generator)
    classes = [torch.randn(size, 2, generator=generator).requires_grad_() for size in sizes]
    times: dict[str, list[float]] = {"ours": [], "direct": []}
    for turn in range(-1, rounds):
        for name, costs in (("ours", sliced_costs), ("direct", direct_costs)):
            directions = uniform(n_projections, 2, generator)
            for points in classes:
                points.grad = None
            start = time.perf_counter()
            torch.autograd.backward(LOSSES["us"](costs(prior, classes, directions)))
            if turn >= 0:
                times[name].append(time.perf_counter() - start)
    ours, direct = (1e3 * statistics.median(times[name]) for name in ("ours", "direct"))
    return f"| K=10 n=1000 n_k=90..112 L={n_projections} d=2 us | {ours:.1f} | {direct:.1f} | {direct / ours:.1f} |"


def measure(case: Case, blocks: int, steps: int) -> Result:
    """Time the implementations in turns."""
    generator = torch.Generator().manual_seed(0)
    support = torch.randn(case.n, case.d, generator=generator).requires_grad_()
    marginals = [torch.randn(size, case.d, generator=generator) + k for k, size in enumerate(case.sizes)]

    # The tasks, too, keep equal-sized marginals as one tensor.
    stacked = torch.stack(marginals) if len(set(case.sizes)) == 1 else marginals

    objective = partial(value_and_gradient, LOSSES[case.loss])
    geometry = Geometry(support.detach(), stacked)

    def step(name: str, directions: Tensor) -> None:
        support.grad = None
        if name == "ours":
            _, support.grad = geometry.gradient(objective, support, directions)
        elif name == "plain":
            torch.autograd.backward(LOSSES[case.loss](plain_costs(support, marginals, directions)))
        else:
            torch.autograd.backward(pot_value(support, marginals, directions))

    def sorts(directions: Tensor) -> Callable[[], None]:
        with torch.no_grad():
            mine = directions @ support.t()
            theirs = [directions @ marginal.t() for marginal in marginals]

        def work() -> None:
            argsort_rows(rows_of(mine), (case.n,))
            for projected in theirs:
                sort_rows(rows_of(projected), (projected.shape[-1],))

        return work

    def drawn() -> Tensor:
        return uniform(case.n_projections, case.d, generator)

    times: dict[str, list[float]] = {name: [] for name in ("ours", "plain", "pot", "sorts")}
    for block in range(-1, blocks):  # the first block warms up
        for name in times:
            for _ in range(steps if block >= 0 else 1):
                directions = drawn()
                work = sorts(directions) if name == "sorts" else partial(step, name, directions)
                start = time.perf_counter()
                work()
                if block >= 0:
                    times[name].append(time.perf_counter() - start)
    medians = {f"{name}_ms": 1e3 * statistics.median(values) for name, values in times.items()}
    memory = {f"{name}_mib": peak_mib(partial(step, name, drawn())) for name in ("ours", "plain")}
    return Result(case=str(case), steps=blocks * steps, **medians, **memory)


def large() -> str:
    """A million points, eight marginals, a hundred directions: the time of a step of ours, and its memory."""
    generator = torch.Generator().manual_seed(0)
    support = torch.randn(1_000_000, 3, generator=generator)
    marginals = torch.randn(8, 1_000_000, 3, generator=generator)
    objective = partial(value_and_gradient, LOSSES["us"])
    start = time.perf_counter()

    def step() -> None:
        Geometry(support, marginals).gradient(objective, support, uniform(100, 3, generator))

    added = peak_mib(step)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"K=8 n=1000000 L=100 d=3 us: {seconds:.1f} s, {added:.0f} MiB more, {peak:.2f} GiB in all at the peak"


def growth(results: dict[str, Result], cases: Sequence[Case]) -> str:
    """Exponents of the time of ours between the smallest and the largest of cases that differ in one number."""
    told = []
    for name, size in (
        ("n", lambda case: case.n),
        ("K", lambda case: len(case.sizes)),
        ("L", lambda case: case.n_projections),
    ):
        varied = sorted((case for case in cases if case.varies == name), key=size)
        first, last = varied[0], varied[-1]
        ratio = results[str(last)].ours_ms / results[str(first)].ours_ms
        told.append(f"{name} {size(first)} to {size(last)}: {math.log(ratio) / math.log(size(last) / size(first)):.2f}")
    return "; ".join(told)


def cases(quick: bool) -> list[Case]:
    """The paper's point-cloud step with every loss first, then what becomes of it as one number changes."""
    found = [Case((2048, 2048), 2048, 10, 3, loss) for loss in LOSSES]
    found += [Case((1500, 2596), 2048, 10, 3, "es")]
    if quick:
        return found
    found += [Case((n,) * 2, n, 10, 3, "us", varies="n") for n in (100, 2048, 3000, 100_000, 1_000_000)]
    found += [Case((2048,) * k, 2048, 10, 3, "us", varies="K") for k in (2, 4, 16, 64)]
    found += [Case((2048,) * 2, 2048, n_projections, 3, "us", varies="L") for n_projections in (10, 100, 1000)]
    found += [Case((2048,) * 2, 2048, 10, d, "us") for d in (2, 64)]
    found += [
        Case((75_000, 125_000), 100_000, 10, 3, "us"),
        Case((100,) * 4, 100, 100, 2, "es"),
        Case((2048,) * 4, 2048, 100, 64, "us"),
    ]
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the point-cloud step only")
    parser.add_argument("--fairness-term", action="store_true", help="the autoencoder's term only")
    parser.add_argument("--large", action="store_true", help="also a step of a million points (minutes)")
    parser.add_argument("--threads", type=int, help="CPU threads of all implementations")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}\n"
    )
    if arguments.fairness_term or not arguments.quick:
        print("| the autoencoder's fairness term | ours, ms | class by class, ms | times faster |")
        print("|---|---:|---:|---:|")
        for n_projections, rounds in ((32, 30), (10_000, 3)):
            print(fairness_term(n_projections, rounds), flush=True)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"\npeak memory of the process so far, class by class included: {peak:.2f} GiB\n")
    if arguments.fairness_term:
        return 0
    heads = ["case", "ours, ms", "plain autograd, ms", "times faster", "POT, ms", "sorts alone, ms", "ours / sorts"]
    print(f"| {' | '.join([*heads, 'ours, MiB', 'plain, MiB'])} |")
    print("|---|" + "---:|" * 8)
    results: dict[str, Result] = {}
    for case in cases(arguments.quick):
        if str(case) in results:
            continue
        work = case.n * case.n_projections * len(case.sizes)
        blocks, steps = (10, 30) if work < 300_000 else (5, 4) if work < 3_000_000 else (2, 1)
        result = results[str(case)] = measure(case, blocks, steps)
        cells = [result.case, *(f"{v:.3f}" for v in (result.ours_ms, result.plain_ms)), f"{result.speedup:.1f}"]
        cells += [f"{result.pot_ms:.3f}", f"{result.sorts_ms:.3f}", f"{result.ours_ms / result.sorts_ms:.1f}"]
        cells += [f"{result.ours_mib:.0f}", f"{result.plain_mib:.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    if not arguments.quick:
        print(f"\nexponents of ours: {growth(results, cases(quick=False))}")
    if arguments.large:
        print(f"\n{large()}")
    if arguments.json:
        document = {
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "results": [asdict(result) for result in results.values()],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
