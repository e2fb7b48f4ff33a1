"""Work side by side in processes that end with their parent, whatever ends it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from tqdm import tqdm

Key = TypeVar("Key")
Outcome = TypeVar("Outcome")


def side_by_side(
    work: Callable[..., Outcome],
    tasks: Mapping[Key, tuple[Any, ...]],
    ended: Callable[[Key, Outcome], None],
    *,
    workers: int,
    name: str,
    unit: str,
    died: Outcome,
) -> None:
    """Call ``work(*arguments)`` for every task, in fresh processes, and ``ended(key, outcome)`` here as each ends.

    Args:
        work: a function that tells of its failures in what it returns.
        tasks: arguments by key.
        ended: called in this process.
        workers: tasks at a time.
        name: of the progress bar.
        unit: what a task is called there.
        died: the outcome of a task whose process died.
    """
    crashed: list[Key] = []
    with tqdm(total=len(tasks), desc=name, disable=None, unit=unit) as bar:

        def tell(key: Key, outcome: Outcome) -> None:
            ended(key, outcome)
            bar.update()

        with _pool(workers) as pool:
            running = {pool.submit(work, *arguments): key for key, arguments in tasks.items()}
            try:
                for done in as_completed(running):
                    try:
                        tell(running[done], done.result())
                    except BrokenProcessPool:
                        crashed.append(running[done])
            except BaseException:  # Ctrl-C, above all: what has not begun must not begin
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        # A process died, out of memory perhaps, and took the pool with it: each of the others gets one of its own.
        for key in crashed:
            with _pool(1) as pool:
                try:
                    tell(key, pool.submit(work, *tasks[key]).result())
                except BrokenProcessPool:
                    tell(key, died)


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_prepare)


def _prepare() -> None:
    logging.disable(logging.WARNING)  # rows and summaries hold what is warned of
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, killed perhaps: what it was doing can be continued."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
