"""reverie teaches an image classifier new classes without keeping one old image.

The public names are loaded when they are first used, so that `import reverie` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reverie.version import __version__

if TYPE_CHECKING:
    from reverie.config import Config
    from reverie.data.images import Dataset, MemoryImages
    from reverie.data.stream import Stream, Task
    from reverie.errors import UserError
    from reverie.experiment import configure
    from reverie.learner import TaskLearner
    from reverie.methods.base import Method
    from reverie.model import Learner, adopt, load
    from reverie.phase import Phase
    from reverie.runs import execute as run

_PLACES = {
    "Config": "reverie.config",
    "Dataset": "reverie.data.images",
    "Learner": "reverie.model",
    "MemoryImages": "reverie.data.images",
    "Method": "reverie.methods.base",
    "Phase": "reverie.phase",
    "Stream": "reverie.data.stream",
    "Task": "reverie.data.stream",
    "TaskLearner": "reverie.learner",
    "UserError": "reverie.errors",
    "adopt": "reverie.model",
    "configure": "reverie.experiment",
    "load": "reverie.model",
    "run": "reverie.runs:execute",
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
