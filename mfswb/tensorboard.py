"""Evaluations as TensorBoard scalars, beside the run folder's own files (an optional extra)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mfswb.errors import ConfigError
from mfswb.problem import Recorder


class WithTensorBoard:
    """A recorder that also writes every numeric entry of an evaluation as a TensorBoard scalar.

    Raises:
        ConfigError: the extra is not installed.
    """

    def __init__(self, inner: Recorder, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ConfigError(
                "trainer.tensorboard=true: needs tensorboardX; pip install 'mfswb[tensorboard]'"
            ) from None
        self._inner = inner
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, NDArray[Any]]) -> None:
        """Record one evaluation in both places."""
        self._inner.evaluated(row, snapshots)
        for name, value in row.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(name, value, row["step"])
        for k, distance in enumerate(row["distances"]):
            self._writer.add_scalar(f"distances/{k}", distance, row["step"])

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Checkpoints go to the run folder alone."""
        self._inner.checkpoint(state)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()
