"""reverie teaches an image classifier new classes without keeping one old image.

The public names are loaded when they are first used, so that `import reverie` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reverie.deprecated import find_moved_modules
from reverie.version import __version__

if TYPE_CHECKING:
    from reverie.config.layers import list_presets
    from reverie.config.schema import Config, settings
    from reverie.data.feed import Batch
    from reverie.data.images import Dataset, MemoryImages
    from reverie.data.stream import Stream, Task
    from reverie.diagnosis.heads import compare_heads
    from reverie.diagnosis.measure import diagnose, diagnose_paper
    from reverie.engine.observer import Observer, Observers
    from reverie.engine.phase import SGD, Adam, AdamW, CosineSchedule, Phase, Stage, StepSchedule, Warmup
    from reverie.errors import Diverged, Interrupted, UserError
    from reverie.learner.task_learner import TaskLearner
    from reverie.methods import losses, register_method
    from reverie.methods.base import Distiller, Method, Taught
    from reverie.methods.coreset import CoresetMethod
    from reverie.methods.dream_replay import DreamReplay, Replay
    from reverie.methods.keeps import Keeps
    from reverie.methods.statistics_replay import StatisticsReplay
    from reverie.model.acceptance import Acceptance
    from reverie.model.adoption import adopt_weights
    from reverie.model.classes import change_classes, list_classes
    from reverie.model.export import export_model
    from reverie.model.folder import load_model, save_model
    from reverie.model.functions import dream, evaluate, predict, predict_proba, score
    from reverie.model.job import learn_folder
    from reverie.model.learner import Learner, adopt, load
    from reverie.nets.backbone import Backbone
    from reverie.nets.class_statistics import ClassStatistics
    from reverie.nets.heads import AnsweringHead
    from reverie.nets.transport import SeenByBoth, Transport
    from reverie.report.demo import run_demo
    from reverie.report.page import write_report
    from reverie.report.server import watch
    from reverie.report.tensorboard import tensorboard_log
    from reverie.runs.bench import measure_speed
    from reverie.runs.configure import configure, list_methods, load_dataset, make_stream
    from reverie.runs.datasets import check_dataset, download_dataset, list_datasets
    from reverie.runs.result import Result
    from reverie.runs.run import run
    from reverie.runs.settings import list_settings, settings_schema
    from reverie.tables.formats import load_results, results_table
    from reverie.tables.table import make_table
    from reverie.tables.tune import tune_settings

_PLACES = {
    # an experiment
    "Config": "reverie.config.schema",
    "Result": "reverie.runs.result",
    "configure": "reverie.runs.configure",
    "list_methods": "reverie.runs.configure",
    "list_presets": "reverie.config.layers",
    "list_settings": "reverie.runs.settings",
    "settings_schema": "reverie.runs.settings",
    "run": "reverie.runs.run",
    "make_table": "reverie.tables.table",
    "tune_settings": "reverie.tables.tune",
    "measure_speed": "reverie.runs.bench",
    "diagnose": "reverie.diagnosis.measure",
    "diagnose_paper": "reverie.diagnosis.measure",
    "compare_heads": "reverie.diagnosis.heads",
    "load_results": "reverie.tables.formats",
    "results_table": "reverie.tables.formats",
    "write_report": "reverie.report.page",
    "watch": "reverie.report.server",
    "tensorboard_log": "reverie.report.tensorboard",
    "run_demo": "reverie.report.demo",
    # data
    "Dataset": "reverie.data.images",
    "MemoryImages": "reverie.data.images",
    "Stream": "reverie.data.stream",
    "Task": "reverie.data.stream",
    "load_dataset": "reverie.runs.configure",
    "make_stream": "reverie.runs.configure",
    "list_datasets": "reverie.runs.datasets",
    "download_dataset": "reverie.runs.datasets",
    "check_dataset": "reverie.runs.datasets",
    # a person's own classifier
    "Acceptance": "reverie.model.acceptance",
    "Learner": "reverie.model.learner",
    "adopt": "reverie.model.learner",
    "adopt_weights": "reverie.model.adoption",
    "load": "reverie.model.learner",
    "learn_folder": "reverie.model.job",
    "predict": "reverie.model.functions",
    "predict_proba": "reverie.model.functions",
    "score": "reverie.model.functions",
    "evaluate": "reverie.model.functions",
    "dream": "reverie.model.functions",
    "list_classes": "reverie.model.classes",
    "change_classes": "reverie.model.classes",
    "export_model": "reverie.model.export",
    "load_model": "reverie.model.folder",
    "save_model": "reverie.model.folder",
    # for people who add methods
    "Adam": "reverie.engine.phase",
    "AnsweringHead": "reverie.nets.heads",
    "Backbone": "reverie.nets.backbone",
    "ClassStatistics": "reverie.nets.class_statistics",
    "AdamW": "reverie.engine.phase",
    "CosineSchedule": "reverie.engine.phase",
    "Batch": "reverie.data.feed",
    "CoresetMethod": "reverie.methods.coreset",
    "Distiller": "reverie.methods.base",
    "DreamReplay": "reverie.methods.dream_replay",
    "Keeps": "reverie.methods.keeps",
    "Method": "reverie.methods.base",
    "Observer": "reverie.engine.observer",
    "Observers": "reverie.engine.observer",
    "Phase": "reverie.engine.phase",
    "Replay": "reverie.methods.dream_replay",
    "SGD": "reverie.engine.phase",
    "SeenByBoth": "reverie.nets.transport",
    "Stage": "reverie.engine.phase",
    "StatisticsReplay": "reverie.methods.statistics_replay",
    "Transport": "reverie.nets.transport",
    "StepSchedule": "reverie.engine.phase",
    "TaskLearner": "reverie.learner.task_learner",
    "Warmup": "reverie.engine.phase",
    "Taught": "reverie.methods.base",
    "losses": "reverie.methods:losses",
    "register_method": "reverie.methods",
    "settings": "reverie.config.schema",
    # errors
    "Diverged": "reverie.errors",
    "Interrupted": "reverie.errors",
    "UserError": "reverie.errors",
}

__all__ = [
    "SGD",
    "Acceptance",
    "Adam",
    "AdamW",
    "AnsweringHead",
    "Backbone",
    "Batch",
    "ClassStatistics",
    "Config",
    "CoresetMethod",
    "CosineSchedule",
    "Dataset",
    "Distiller",
    "Diverged",
    "DreamReplay",
    "Interrupted",
    "Keeps",
    "Learner",
    "MemoryImages",
    "Method",
    "Observer",
    "Observers",
    "Phase",
    "Replay",
    "Result",
    "SeenByBoth",
    "Stage",
    "StatisticsReplay",
    "StepSchedule",
    "Stream",
    "Task",
    "TaskLearner",
    "Taught",
    "Transport",
    "UserError",
    "Warmup",
    "__version__",
    "adopt",
    "adopt_weights",
    "change_classes",
    "check_dataset",
    "compare_heads",
    "configure",
    "diagnose",
    "diagnose_paper",
    "download_dataset",
    "dream",
    "evaluate",
    "export_model",
    "learn_folder",
    "list_classes",
    "list_datasets",
    "list_methods",
    "list_presets",
    "list_settings",
    "load",
    "load_dataset",
    "load_model",
    "load_results",
    "losses",
    "make_stream",
    "make_table",
    "measure_speed",
    "predict",
    "predict_proba",
    "register_method",
    "results_table",
    "run",
    "run_demo",
    "save_model",
    "score",
    "settings",
    "settings_schema",
    "tensorboard_log",
    "tune_settings",
    "watch",
    "write_report",
]

find_moved_modules()


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'reverie' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    if attribute:  # a module of a package
        return import_module(f"{module}.{attribute}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
