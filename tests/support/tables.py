"""Tables of small runs: planned, ended by hand, and their worker processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reverie.config.layers import Settings
from reverie.tables.plan import Plan, PlannedRun, entries_for
from tests.support.experiments import TINY
from tests.support.results import made_up_result

QUICK = [*TINY, "train.epochs=1", "stream.take=2"]
SLOW = [*TINY, "train.epochs=400", "stream.take=2"]


def plan_of(
    out: Path,
    methods: Sequence[str],
    settings: Settings = QUICK,
    seeds: Sequence[int] = (0,),
    upper_bound: bool = True,
) -> Plan:
    """On the digits."""
    return Plan.make(entries_for("digits-5", methods, upper_bound), seeds, "paper", settings, out)


def end_by_hand(run: PlannedRun, seconds: float = 10.0, accuracy: float = 0.5, **facts: Any) -> None:
    """What a finished run that took so many seconds leaves."""
    config = run.config
    result = made_up_result(config.method, accuracy, seconds=seconds, seed=config.seed, **facts)
    run.folder.path.mkdir(parents=True, exist_ok=True)
    run.folder.claim(config, result.data_fingerprint)
    run.folder.result.write_text(json.dumps(result.as_dict()))


def child_processes(process: int) -> list[int]:
    """The numbers of the processes that a process has started."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [line.split() for line in listed.splitlines()]
    return [int(number) for number, parent in pairs if int(parent) == process]
