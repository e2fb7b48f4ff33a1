"""Files fetched once from a public address, verified by checksum before use."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

from mfswb.errors import DataError

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where downloads are kept: the user's cache folder for this program."""
    import pooch

    return Path(pooch.os_cache("mfswb"))


def fetch(urls: Sequence[str], checksum: str, file_name: str, instead: str, *, of_contents: bool = False) -> Path:
    """Path of a downloaded file, kept in the user's cache folder.

    Args:
        urls: addresses to try, one after the other.
        checksum: ``sha256:...`` or ``md5:...`` of the file.
        file_name: name in the cache folder.
        instead: what to do without a network, for the error message.
        of_contents: the checksum is that of the contents after unpacking gzip; mirrors may compress differently.

    Raises:
        DataError: no address could be reached, or what came has another checksum (it is deleted).
    """
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    folder = cache_folder()
    target = folder / file_name
    problem = ""
    for url in urls:
        try:
            known = None if of_contents else checksum
            path = Path(pooch.retrieve(url, known, fname=target.name, path=target.parent))
            if of_contents and not _holds(path, checksum):
                path.unlink()
                # once more: the file may have lain there from an earlier, broken download
                path = Path(pooch.retrieve(url, known, fname=target.name, path=target.parent))
                if not _holds(path, checksum):
                    path.unlink()
                    raise ValueError("checksum")
            return path
        except requests.RequestException as error:
            problem = f"{type(error).__name__}"
        except ValueError:
            problem = "its checksum is wrong"
        except OSError as error:
            problem = f"{error.strerror or error}"
        log.info("could not fetch %s: %s", url, problem)
    raise DataError(f"{target.name}: could not be fetched into {target.parent} ({problem}); {instead}")


def _holds(path: Path, checksum: str) -> bool:
    from mfswb.data.idx import read_unpacked

    kind, _, digest = checksum.partition(":")
    try:
        return hashlib.new(kind, read_unpacked(path)).hexdigest() == digest
    except DataError:
        return False
