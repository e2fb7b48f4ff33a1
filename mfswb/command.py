"""What the small commands share: how their options look, how errors are told, the exit code."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable

from mfswb.errors import MfswbError

log = logging.getLogger(__name__)


def make_parser(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Options of a command, with examples below and ``--debug``."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show errors with their traceback")
    return parser


def carry_out(work: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Do the work with messages on standard error; an error the user can mend is one line and exit code 1."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        return work(options)
    except (MfswbError, OSError) as error:
        if options.debug:
            log.exception("%s", error)
        else:
            log.error("%s", error)
        return 1
