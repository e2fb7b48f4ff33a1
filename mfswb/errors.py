"""Errors a user can do something about. Each message is one line: what, where, what to do."""

from __future__ import annotations


class MfswbError(Exception):
    """Base of all errors raised on purpose; the command line shows its message without a traceback."""


class DataError(MfswbError, ValueError):
    """An input file or array is missing, malformed or not finite."""


class ConfigError(MfswbError, ValueError):
    """A setting is out of range or does not fit another one."""


class NotConvergedError(MfswbError, RuntimeError):
    """The exact transport solver gave up before it reached the optimum."""


class DivergedError(MfswbError, ArithmeticError):
    """The loss or the iterate became infinite or NaN."""

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step

    def __reduce__(self) -> tuple[type[DivergedError], tuple[int, str]]:
        """Sweeps send errors from process to process."""
        return DivergedError, (self.step, str(self))


def first_line(error: BaseException) -> str:
    """What an error of somebody else's code says, on one line; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
