"""``mfswb-run``: composes the configuration with Hydra and hands it over. PyTorch is imported only when a job runs."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from mfswb.configuration import config_dir, register_resolvers
from mfswb.errors import MfswbError
from mfswb.guard import explained, guarded, tracebacks_wanted
from mfswb.help import help_text

log = logging.getLogger(__name__)


def job(cfg: DictConfig) -> float | None:
    """Run one job; returns the figure a hyperparameter search minimises, ``cfg.objective`` of the summary."""
    from mfswb.run import run

    runtime = HydraConfig.get()
    folder = Path(runtime.runtime.output_dir)
    try:
        summary = run(cfg, folder, list(runtime.overrides.task), again=runtime.mode == RunMode.MULTIRUN)
    except MfswbError as error:
        if cfg.debug is True or tracebacks_wanted():
            log.exception("%s", error)
        else:
            log.error("%s", error)
        if runtime.mode == RunMode.RUN:
            sys.exit(1)
        _keep_traceback(folder)
        raise  # a sweep goes on with its other jobs
    except Exception:
        if runtime.mode == RunMode.MULTIRUN:
            _keep_traceback(folder)
        raise
    except KeyboardInterrupt as interrupt:
        from mfswb.interrupts import TerminatedError

        log.error("interrupted; continue with trainer.resume=%s", folder)
        sys.exit(143 if isinstance(interrupt, TerminatedError) else 130)
    if int(os.environ.get("RANK", "0")) > 0:
        return None
    where = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
    line = f"done: {where}  F = {summary['fairness_gap']:.6g}  W = {summary['mean_distance']:.6g}"
    logging.getLogger("mfswb.result").info("%s", line)
    value = summary.get(cfg.objective)
    return float(value) if isinstance(value, (int, float)) else None


def _keep_traceback(folder: Path) -> None:
    """Leave the error in the job's folder, even where the run did not get so far as to have records there."""
    from mfswb.files import write_text
    from mfswb.runfolder import TRACEBACK

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TRACEBACK, traceback.format_exc())


def _passing_folder() -> str:
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="mfswb-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def main() -> None:
    """Entry point of ``mfswb-run``."""
    register_resolvers()
    with guarded():
        if {"--help", "-h"} & set(sys.argv[1:]):
            try:
                text = help_text([word for word in sys.argv[1:] if not word.startswith("-")])
            except (HydraException, OmegaConfBaseException) as error:
                sys.exit(explained(error))
            sys.stdout.write(text + "\n")
            return
        if int(os.environ.get("RANK", "0")) > 0:  # torchrun's further processes leave no folder
            sys.argv.append(f"hydra.run.dir={_passing_folder()}")
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")(job)()


if __name__ == "__main__":
    main()
