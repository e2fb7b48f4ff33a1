"""Readers against damaged files: what is wrong is said, and nothing else happens.

A few hundred inputs by default; ``MFSWB_FUZZ=10000 python -m pytest tests/test_fuzz.py`` tries so many.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuzzing import SAMPLES, Sample, damaged
from hypothesis import HealthCheck, given, settings

from mfswb.errors import DataError

INPUTS = int(os.environ.get("MFSWB_FUZZ", "300"))
SECONDS, MEMORY = 1.0, 1 << 30

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of time and memory are set as Linux has them")


class TooSlowError(BaseException):
    """Not an Exception, so that no reader takes it for a fault of the file."""


def _too_slow(*_: object) -> None:
    raise TooSlowError


@contextmanager
def limits() -> Iterator[None]:
    """One second of this process's own time, and 1 GB of address space more than it has."""
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, _too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGVTALRM, handler)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_undamaged_files_are_read(folder: Path, name: str) -> None:
    sample = SAMPLES[name]
    (folder / name).write_bytes(sample.build(sample.content))
    sample.read(folder / name)


@settings(max_examples=INPUTS, suppress_health_check=list(HealthCheck))
@given(damaged())
def test_damaged_files_are_read_or_named(folder: Path, file: tuple[Sample, bytes]) -> None:
    sample, content = file
    path = folder / sample.name
    path.write_bytes(content)
    try:
        with limits():
            sample.read(path)
    except DataError as error:
        message = str(error)
        assert "\n" not in message
        assert sample.name.partition(".")[0] in message
