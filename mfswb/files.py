"""Writing files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What a process that was killed while it wrote may leave behind.
UNFINISHED = ".*.tmp*"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that takes the place of ``path`` when the block ends without an error.

    The contents are on disk before the rename, so after a crash ``path`` holds the old or the new file, whole.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, atomically. NaN and infinities are refused: they are no JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def save_array(path: Path, values: NDArray[Any]) -> None:
    """Write an ``.npy`` file, atomically."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, np.ascontiguousarray(values), allow_pickle=False)
