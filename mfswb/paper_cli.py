"""``mfswb-paper``: make the paper's tables and figures again. PyTorch is imported only when runs are made."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mfswb.command import carry_out, make_parser
from mfswb.configuration import cores
from mfswb.errors import ConfigError, DataError, MfswbError
from mfswb.experiments import STUDY_PREFIX, Experiment, Job, choose, load_experiments

if TYPE_CHECKING:
    from mfswb.paper import Result

log = logging.getLogger("mfswb.paper")

_DESCRIPTION = "Make the paper's tables and figures: what is missing is run, what is there is kept."
_EXAMPLES = """\
  mfswb-paper list
  mfswb-paper all --quick --builtin
  mfswb-paper pointcloud gaussian --data FOLDER
  mfswb-paper swae --data FOLDER trainer.epochs=5
  mfswb-paper slicing --builtin study.repetitions=20
"""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "mfswb-paper", "Make the paper's tables and figures: what is missing is run, what is there is kept.", _EXAMPLES
    )
    parser.add_argument("names", nargs="+", help="experiments, or all, or list; then settings as in trainer.steps=100")
    parser.add_argument("--quick", action="store_true", help="minutes in all instead of the paper's lengths")
    parser.add_argument("--builtin", action="store_true", help="data that come with the program instead of the paper's")
    parser.add_argument("--data", type=Path, help="folder with the paper's data: shapenetcore55_50.npy, images, mnist")
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at a time, one thread each (all cores)")
    parser.add_argument("-o", "--output", type=Path, default=Path("outputs/paper"), help="folder (outputs/paper)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``mfswb-paper``."""
    options = _parser().parse_intermixed_args(arguments)
    typed = shlex.join(["mfswb-paper", *(sys.argv[1:] if arguments is None else arguments)])
    try:
        return carry_out(partial(_work, typed=typed), options)
    except KeyboardInterrupt:
        log.error("interrupted; the same command goes on where it stopped")
        return 130


def _work(options: argparse.Namespace, typed: str) -> int:
    extra = [name for name in options.names if "=" in name]
    names = [name for name in options.names if "=" not in name]
    if names == ["list"]:
        for experiment in load_experiments().values():
            log.info("%s", _described(experiment))
        return 0
    if options.jobs < 1:
        raise ConfigError(f"--jobs {options.jobs}: give a positive number")
    if options.data is not None and not options.data.is_dir():
        raise ConfigError(f"--data {options.data}: no such folder (looked from {Path.cwd()})")
    if not names:
        raise ConfigError("no experiment is named; mfswb-paper list shows them")
    chosen = choose(names)
    for_studies = [text for text in extra if text.startswith(STUDY_PREFIX)]
    for_runs = [text for text in extra if text not in for_studies]
    if for_runs and all(experiment.is_study for experiment in chosen):
        raise ConfigError(f"{for_runs[0]}: {names[0]} is a study; its settings are {STUDY_PREFIX}KEY=VALUE")
    if for_studies and not any(experiment.is_study for experiment in chosen):
        raise ConfigError(f"{for_studies[0]}: {names[0]} is no study; its runs have settings as in trainer.steps=100")
    outcomes = [
        _make_study(experiment, options, for_studies, typed)
        if experiment.is_study
        else _make(experiment, options, for_runs, typed)
        for experiment in chosen
    ]
    return 0 if all(outcomes) else 1


def _make_study(experiment: Experiment, options: argparse.Namespace, extra: list[str], typed: str) -> bool:
    from mfswb.studies.running import build_study, make_study

    settings = experiment.study(quick=options.quick, builtin=options.builtin, data_folder=options.data, extra=extra)
    try:
        cells = build_study(settings).cells()
    except MfswbError as error:
        log.error(
            "%s: %s%s", experiment.name, error, _hint(experiment, options) if isinstance(error, DataError) else ""
        )
        return False
    cost = experiment.cost["quick" if options.quick else "full"]
    log.info("%s: %d pieces, %d at a time (%s)", experiment.name, len(cells), options.jobs, cost)
    result = make_study(experiment, settings, _folder(experiment, options), workers=options.jobs, command=typed)
    return _tell(experiment, result)


def _make(experiment: Experiment, options: argparse.Namespace, extra: list[str], typed: str) -> bool:
    from mfswb.paper import make

    jobs = experiment.jobs(quick=options.quick, builtin=options.builtin, data_folder=options.data, extra=extra)
    problem = _check(jobs[0])
    if problem is not None:
        log.error("%s: %s%s", experiment.name, problem, _hint(experiment, options))
        return False
    cost = experiment.cost["quick" if options.quick else "full"]
    log.info("%s: %d runs, %d at a time (%s)", experiment.name, len(jobs), options.jobs, cost)
    result = make(
        experiment,
        jobs,
        _folder(experiment, options),
        workers=options.jobs,
        steps=experiment.steps(options.quick),
        command=typed,
    )
    return _tell(experiment, result)


def _folder(experiment: Experiment, options: argparse.Namespace) -> Path:
    variant = "".join(f"-{name}" for name in ("quick", "builtin") if getattr(options, name))
    folder: Path = options.output / f"{experiment.name}{variant}"
    return folder


def _hint(experiment: Experiment, options: argparse.Namespace) -> str:
    """What to do where the paper's data are not at hand, to go behind what went wrong."""
    if options.builtin:
        return ""
    missing = ", ".join(map(str, experiment.missing_files(options.data)))
    hint = f"there is no {missing}" if missing else "--data FOLDER says where the paper's data are"
    return f"; {hint}, --builtin does without them"


def _tell(experiment: Experiment, result: Result) -> bool:
    told = f"{result.made} made, {result.kept} kept, {len(result.failures)} failed, {result.seconds:.0f} s"
    log.info("%s: %s: %s", experiment.name, told, result.folder)
    if result.failures:
        log.error("%s: failed: %s", experiment.name, "; ".join(f"{k} ({v})" for k, v in result.failures.items()))
    return not result.failures


def _check(job: Job) -> str | None:
    """Compose and read the data once before dozens of runs fail to; what is wrong, if anything."""
    from mfswb.building import build
    from mfswb.configuration import compose_config
    from mfswb.run import plain_config

    try:
        config = plain_config(compose_config(list(job.overrides)))
        build("data", config["data"])
    except MfswbError as error:
        return str(error)
    return None


def _described(experiment: Experiment) -> str:
    cost = ", ".join(f"{preset}: {words}" for preset, words in experiment.cost.items())
    return f"{experiment.name:<12} {experiment.makes}\n{'':<12} {cost}"


if __name__ == "__main__":
    sys.exit(main())
