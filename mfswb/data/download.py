"""Files fetched once from a public address, verified by checksum before use."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from mfswb.errors import DataError

log = logging.getLogger(__name__)


def fetch(urls: Sequence[str], sha256: str, file_name: str, instead: str) -> Path:
    """Path of a downloaded file, kept in the user's cache folder.

    Args:
        urls: addresses to try, one after the other.
        sha256: checksum of the contents.
        file_name: name in the cache folder.
        instead: what to do without a network, for the error message.

    Raises:
        DataError: no address could be reached, or what came has another checksum (it is deleted).
    """
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    folder = Path(pooch.os_cache("mfswb"))
    problem = ""
    for url in urls:
        try:
            return Path(pooch.retrieve(url, f"sha256:{sha256}", fname=file_name, path=folder))
        except requests.RequestException as error:
            problem = f"{type(error).__name__}"
        except ValueError:
            problem = "its checksum is wrong"
        except OSError as error:
            problem = f"{error.strerror or error}"
        log.info("could not fetch %s: %s", url, problem)
    raise DataError(f"{file_name}: could not be fetched into {folder} ({problem}); {instead}")
