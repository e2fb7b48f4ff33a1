"""Exact transport in a second process, so that two distances are computed at once.

POT holds Python's global lock while it solves, so threads do not help. The process is this module run as a program: it
reads pickle-free requests from its standard input and ends when that is closed, also when its parent is killed.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import IO

import numpy as np
from numpy.typing import NDArray

from mfswb.errors import DataError, MfswbError, NotConvergedError
from mfswb.metrics import wasserstein2_squared

Measure = tuple[NDArray[np.float64], NDArray[np.float64] | None]

# Below this many entries of the cost matrix a problem is solved before the other process has heard of it.
_WORTH_A_PROCESS = 1_000_000
_WORTH_AN_IMPORT = 4
_ERRORS: dict[str, type[MfswbError]] = {error.__name__: error for error in (DataError, NotConvergedError)}


class TransportSolver:
    """Exact W_2^2 of one measure to several others; large problems are shared with a second process.

    Args:
        sizes: numbers of points that will be asked for: of the measure, and of the others.
    """

    def __init__(self, size: int, others: Sequence[int]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: ThreadPoolExecutor | None = None
        if others and size * min(others) >= _WORTH_A_PROCESS and (os.cpu_count() or 1) > 1:
            # Started now, so that its imports are over when the first evaluation comes. POT would import PyTorch, too.
            environment = {**os.environ, "POT_BACKEND_DISABLE_PYTORCH": "1", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mfswb.transport_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent; this process ends with its input
            )

    def distances(self, measure: Measure, others: Sequence[Measure]) -> list[float]:
        """Exact W_2^2 to each of the others, in their order.

        Raises:
            DataError: as :func:`mfswb.metrics.wasserstein2_squared`.
            NotConvergedError: likewise.
        """
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            return [wasserstein2_squared(measure[0], other[0], measure[1], other[1]) for other in others]
        # Here POT's import alone takes as long as two or three problems.
        shared = "ot" in sys.modules or len(others) > _WORTH_AN_IMPORT
        found: dict[int, float] = {}
        waiting = list(range(len(others)))
        asked: list[int] = []
        try:
            # One there, one here, and so on: equal shares are good enough for problems of a size.
            while waiting:
                asked = [waiting.pop()]
                _send(self._process.stdin, measure, others[asked[0]])
                if waiting and shared:
                    mine = waiting.pop(0)
                    found[mine] = wasserstein2_squared(measure[0], others[mine][0], measure[1], others[mine][1])
                found[asked[0]] = _receive(self._process.stdout)
        except (BrokenPipeError, EOFError):
            self.close()  # killed, or out of memory: the figures are computed here instead
            return self.distances(measure, others)
        except MfswbError:
            self.close()  # an answer may still be on its way
            raise
        return [found[k] for k in range(len(others))]

    def begin(self, measure: Measure, others: Sequence[Measure]) -> Future[list[float]] | None:
        """The same, beside what this process does meanwhile, one after the other; None without a second process.

        All results must have been taken before :meth:`distances` is asked.
        """
        if self._process is None:
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="mfswb-transport")
        return self._thread.submit(self._ask, self._process, measure, list(others))

    def _ask(self, process: subprocess.Popen[bytes], measure: Measure, others: Sequence[Measure]) -> list[float]:
        found = []
        for other in others:
            try:
                if process.stdin is None or process.stdout is None:
                    raise EOFError
                _send(process.stdin, measure, other)
                found.append(_receive(process.stdout))
            except (OSError, EOFError, ValueError):  # killed, out of memory, or closed by this process
                if self._process is None:
                    raise
                found.append(wasserstein2_squared(measure[0], other[0], measure[1], other[1]))
        return found

    def close(self) -> None:
        """End the second process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if self._thread is not None:
            self._thread.shutdown()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


def _send(stream: IO[bytes], measure: Measure, other: Measure) -> None:
    arrays = {"x": measure[0], "y": other[0], "a": measure[1], "b": other[1]}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: array for name, array in arrays.items() if array is not None})
    stream.write(struct.pack("<Q", buffer.tell()) + buffer.getvalue())
    stream.flush()


def _receive(stream: IO[bytes]) -> float:
    line = stream.readline().decode("utf-8")
    if not line.endswith("\n"):
        raise EOFError("the transport process ended")
    kind, _, text = line.rstrip("\n").partition(" ")
    if kind == "value":
        return float.fromhex(text)
    raise _ERRORS.get(kind, MfswbError)(text)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until they end: a length, an ``.npz`` of that length; back goes one line."""
    import_module("ot")  # so that the first request need not wait for it

    while True:
        head = requests.read(8)
        if len(head) < 8:
            return
        (length,) = struct.unpack("<Q", head)
        with np.load(io.BytesIO(requests.read(length)), allow_pickle=False) as archive:
            arrays = dict(archive)
        try:
            value = wasserstein2_squared(arrays["x"], arrays["y"], arrays.get("a"), arrays.get("b"))
            answer = f"value {value.hex()}"
        except MfswbError as error:
            answer = f"{type(error).__name__} {error}"
        answers.write(answer.encode("utf-8") + b"\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
