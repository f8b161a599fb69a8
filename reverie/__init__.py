"""reverie teaches an image classifier new classes without keeping one old image.

The public names are loaded when they are first used, so that `import reverie` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reverie.version import __version__

if TYPE_CHECKING:
    from reverie.config.schema import Config
    from reverie.data.images import Dataset, MemoryImages
    from reverie.data.stream import Stream, Task
    from reverie.engine.phase import Phase
    from reverie.errors import UserError
    from reverie.learner.task_learner import TaskLearner
    from reverie.methods.base import Method
    from reverie.model.learner import Learner, adopt, load
    from reverie.runs.configure import configure
    from reverie.runs.run import execute as run

_PLACES = {
    "Config": "reverie.config.schema",
    "Dataset": "reverie.data.images",
    "Learner": "reverie.model.learner",
    "MemoryImages": "reverie.data.images",
    "Method": "reverie.methods.base",
    "Phase": "reverie.engine.phase",
    "Stream": "reverie.data.stream",
    "Task": "reverie.data.stream",
    "TaskLearner": "reverie.learner.task_learner",
    "UserError": "reverie.errors",
    "adopt": "reverie.model.learner",
    "configure": "reverie.runs.configure",
    "load": "reverie.model.learner",
    "run": "reverie.runs.run:execute",
}

__all__ = [
    "Config",
    "Dataset",
    "Learner",
    "MemoryImages",
    "Method",
    "Phase",
    "Stream",
    "Task",
    "TaskLearner",
    "UserError",
    "__version__",
    "adopt",
    "configure",
    "load",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'reverie' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted(__all__)
