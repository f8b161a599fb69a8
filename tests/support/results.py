"""Results of runs that nobody has made, for tables that could be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reverie.learner.ledger import LedgerEntry
from reverie.runs.configure import configure
from reverie.runs.result import MetricsRecord, PhaseCost, Result, TimeSpent

TASKS = 2


def made_up_result(
    method: str,
    accuracy: float,
    omega: float | None = None,
    *,
    seconds: float = 10.0,
    seed: int = 0,
    preset: str = "digits-5",
    recipe: str = "paper",
    settings: Sequence[str] = (),
    **facts: Any,
) -> Result:
    """Two tasks, of which the second took 5 s to learn, 3 s to dream and 1 s for a phase `bias`."""
    config = configure(preset, method, seed=seed, recipe=recipe, settings=settings)
    result = Result(
        preset=preset,
        method=method,
        recipe=recipe,
        seed=seed,
        config=config.as_dict(),
        metrics=MetricsRecord(
            final_accuracy=accuracy,
            average_incremental_accuracy=accuracy,
            forgetting=None if method == "joint" else 0.25,
            backward_transfer=None,
            omega=omega,
            accuracy_after=[accuracy] * TASKS,
            omega_up_to=None,
            task_local_accuracy=[accuracy] * TASKS,
        ),
        accuracy_matrix=[[accuracy, None], [accuracy, accuracy]],
        task_sizes=[2, 2],
        class_order=[0, 1, 2, 3],
        class_names=["0", "1", "2", "3"],
        test_images=[10, 10],
        seconds=TimeSpent(
            total=seconds,
            by_part={},
            by_task=[{"learn": 90.0, "evaluate": 1.0}, {"learn": 5.0, "dream": 3.0, "bias": 1.0, "evaluate": 1.0}],
        ),
        phases=[
            {"learn": PhaseCost(steps=1, setup_seconds=0.0)},
            {"learn": PhaseCost(steps=100, setup_seconds=1.0), "dream": PhaseCost(steps=10, setup_seconds=0.0)},
        ],
        peak_memory_bytes=2_400_000_000 + seed,
        ledger=[LedgerEntry(kept_bytes=0), LedgerEntry(kept_bytes=6_144_000)],
        data_fingerprint="0" * 32,
    )
    return result.replace(**facts)


def of_own_preset(accuracy: float, *settings: str, method: str = "abd", name: str = "mine", **facts: Any) -> Result:
    """The preset does not come with reverie, so nobody knows its usual values."""
    result = made_up_result(method, accuracy, settings=settings)
    return result.replace(preset=name, config=result.config | {"preset": name}, **facts)


def by_foreign_method(result: Result, name: str = "theirs") -> Result:
    """The method is of somebody's own package, which is not installed here."""
    return result.replace(method=name, config=result.config | {"method": {"name": name, "power": 3}})
