"""Ctrl-C and SIGTERM without half a step: they wait while something must be done as a whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C."""


class Interrupts:
    """While entered, SIGINT and SIGTERM raise :class:`KeyboardInterrupt`; inside :meth:`held` only at its end.

    A second signal does not wait: :attr:`forced` then says that what was held may be half done. Python loses what is
    raised while it collects garbage; such a signal is raised at the end of the next :meth:`held`.

    Outside the main thread, where Python lets nobody handle signals, and for signals that are ignored (as a shell does
    for jobs in the background) nothing is changed.

    Example:
        >>> done = []
        >>> with Interrupts() as interrupts:
        ...     try:
        ...         with interrupts.held():
        ...             signal.raise_signal(signal.SIGINT)
        ...             done.append("the whole of it")
        ...         done.append("and on")
        ...     except KeyboardInterrupt:
        ...         done.append("interrupted")
        >>> done
        ['the whole of it', 'interrupted']
    """

    def __init__(self) -> None:
        self.forced = False
        self._before: dict[int, Any] = {}
        self._depth = 0
        self._waiting: int | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do what is inside as a whole; a signal that came meanwhile is raised at its end, the outermost of several."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._waiting is not None and not self._depth:
            self._raise(self._waiting)

    def handled(self) -> None:
        """Forget the signal that was raised: from here on another one is meant."""
        self._waiting = None

    def _received(self, number: int, frame: FrameType | None) -> None:
        again, self._waiting = self._waiting is not None, number
        if self._depth and not again:
            return
        self.forced = self._depth > 0
        self._raise(number)

    def _raise(self, number: int) -> None:
        raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt
