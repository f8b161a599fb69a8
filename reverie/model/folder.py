"""The model folder: safetensors and JSON, a card for people, and the ledger of what was seen and what was kept.

docs/model-folder.md says what stands in each file. Every file is listed in `config.json` with its size and SHA-256, and
`config.json` holds a digest of itself, so that damage and careless changes are noticed. Loading runs no code.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
import torch
from pydantic import Field
from safetensors import SafetensorError
from torch import Tensor, nn

from reverie.config.schema import Config
from reverie.data.preprocessing import Preprocessing
from reverie.errors import UserError, explaining
from reverie.learner.ledger import plain_ledger, read_ledger
from reverie.learner.task_learner import TaskLearner
from reverie.model.acceptance import Acceptance
from reverie.model.card import model_card
from reverie.model.saved import SavedModel, needed_packages
from reverie.nets import Architecture, check_network, make_backbone
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.classifier import Classifier
from reverie.nets.fixed_features import COUNT
from reverie.nets.weights import as_state_of
from reverie.system.files import json_bytes, text_bytes, write_bytes, write_folder
from reverie.system.plugins import KINDS, plugin_names
from reverie.system.records import Record, as_record, parse_record
from reverie.text import did_you_mean, first_line
from reverie.version import __version__

SCHEMA = 2
WEIGHTS, SETTINGS, CARD, LEDGER = "model.safetensors", "config.json", "README.md", "ledger.json"
ACCEPTANCE = "acceptance.json"  # only where the model has been judged
STATISTICS = "statistics.safetensors"  # only where its method keeps class statistics
FILES = (WEIGHTS, SETTINGS, CARD, LEDGER, ACCEPTANCE, STATISTICS)

# What reading, and building from what was read, may raise where a file holds something else than it should.
STRANGE_CONTENT = (SafetensorError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError)
TRAINING_HEAD = "training head"  # as no answering head is called
READABLE = "Change its permissions, or choose another model."

log = logging.getLogger("reverie")


class FileRecord(Record):
    bytes: Annotated[int, Field(ge=0)]
    sha256: str


class ArchitectureRecord(Record):
    family: str
    name: str
    options: dict[str, str | int] = Field(default_factory=dict)


class StatisticsRecord(Record):
    form: str
    features: int

    @classmethod
    def of(cls, statistics: ClassStatistics | None) -> StatisticsRecord | None:
        return None if statistics is None else cls(form=statistics.form, features=statistics.means.shape[1])


class ModelConfig(Record):
    """`config.json`: everything but the weights that a classifier is built from."""

    schema_version: Annotated[int, Field(alias="schema", ge=1, le=1_000)]
    reverie: str
    architecture: ArchitectureRecord
    head_rows: Annotated[int, Field(ge=1, le=1_000_000)]
    classes: Annotated[list[str], Field(min_length=1, max_length=1_000_000)]
    preprocessing: dict[str, Any]  # as `Preprocessing.from_dict` reads it
    rejection: Annotated[float, Field(ge=-1, le=1)] | None = None
    lineage: list[str] = Field(default_factory=list)
    training: dict[str, Any]  # as `Config.from_dict` reads it
    packages: dict[str, str] = Field(default_factory=dict)  # "head NAME", "backbone NAME": what it is made with
    answering: str | None = None  # the head that answers, or TRAINING_HEAD; none in folders of earlier versions
    statistics: StatisticsRecord | None = None  # the same holds
    files: dict[str, FileRecord] = Field(default_factory=dict)
    digest: str

    @classmethod
    def of(cls, model: SavedModel, files: Mapping[str, bytes]) -> ModelConfig:
        classifier, architecture = model.classifier, model.classifier.backbone.architecture
        made = cls(
            schema_version=SCHEMA,
            reverie=__version__,
            architecture=ArchitectureRecord(**architecture.as_dict()),
            head_rows=classifier.head.rows,
            classes=list(classifier.class_names),
            preprocessing=classifier.preprocessing.as_dict(),
            rejection=model.rejection,
            lineage=list(model.lineage),
            training=model.config.published(),
            packages=needed_packages(classifier),
            answering=_answering(classifier),
            statistics=StatisticsRecord.of(model.statistics),
            files={name: FileRecord(bytes=len(raw), sha256=_sha256(raw)) for name, raw in sorted(files.items())},
            digest="",
        )
        return made.replace(digest=_digest(made.as_dict()))


def _answering(classifier: Classifier) -> str:
    return TRAINING_HEAD if classifier.answering_head is None else classifier.answering_head.name


def _refuse_missing_packages(folder: Path, packages: Mapping[str, str]) -> None:
    groups = {kind: group for group, kind in KINDS.items()}
    for what, package in packages.items():
        kind, _, name = what.partition(" ")
        if kind in groups and name not in plugin_names(groups[kind]):
            raise UserError(
                f"The model in {folder} needs the {kind} {name!r} of the package {package or '(unknown)'}, which is "
                "not installed here."
            )


# --- writing


def save_model(model: SavedModel | TaskLearner, folder: Path | str, *, overwrite: bool = False) -> str:
    """Write a model folder: all of it, or nothing. Only another model folder is ever overwritten. Gives its digest.

    Raises UserError where there is something already, or where nothing can be written.
    """
    folder = Path(folder)
    if isinstance(model, TaskLearner):
        model = SavedModel.of(model)
    deed, left, room = "written", "Nothing was left there", "Make room"
    try:
        if folder.exists():
            deed, left, room = "changed", "It is as it was", f"Make room in {folder.resolve().parent}"
        _refuse_loss(folder, overwrite)
        return write_model(folder, model)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be {deed}: {error.strerror or error}. {left}. {room}, or choose a place where you may "
            "write."
        ) from None


def write_model(folder: Path, model: SavedModel) -> str:
    """The same into a folder that is nobody's."""
    content = _content(model)

    def fill(scratch: Path) -> None:
        for name, raw in content.items():
            write_bytes(scratch / name, raw)

    write_folder(folder, fill)
    return str(json.loads(content[SETTINGS])["digest"])


def _content(model: SavedModel) -> dict[str, bytes]:
    """Every file of the folder."""
    content = {
        WEIGHTS: _tensor_bytes(model.classifier.state_dict()),
        LEDGER: json_bytes(plain_ledger(model.ledger)),
        CARD: text_bytes(model_card(model)),
    }
    if model.acceptance is not None:
        content[ACCEPTANCE] = json_bytes(model.acceptance.as_dict())
    if model.statistics is not None:
        content[STATISTICS] = _tensor_bytes(model.statistics.state_dict())
    return {**content, SETTINGS: json_bytes(ModelConfig.of(model, content).as_dict())}


def _tensor_bytes(state: Mapping[str, Tensor]) -> bytes:
    plain = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in state.items()}
    return safetensors.torch.save(plain)


def _refuse_loss(folder: Path, overwrite: bool) -> None:
    """Whatever a person has there is worth more than what would take its place."""
    if not folder.exists():
        return
    if not overwrite:
        raise UserError(
            f"{folder} exists already. Choose another folder, so that nothing is lost, or say `overwrite=True`."
        )
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in FILES) if folder.is_dir() else ["it"]
    if others:
        raise UserError(f"{folder} is not a model folder alone ({others[0]!r} is none of its files). Choose another.")
    if _somebody_wrote_in_the_card(folder):
        raise UserError(
            f"Somebody wrote in {folder / CARD}, and a new card would take its place. Choose another folder for the "
            "model, or move that file away."
        )


def _somebody_wrote_in_the_card(folder: Path) -> bool:
    if not (folder / CARD).exists():
        return False
    with suppress(UserError):  # damaged: nothing is known of its files
        written = _read_config(folder).files.get(CARD)
        return written is not None and _sha256((folder / CARD).read_bytes()) != written.sha256
    return False


# --- reading


def load_model(folder: Path | str, build: Callable[[], nn.Module] | None = None) -> SavedModel:
    """Read a model folder that is whole and unchanged; any other is refused. `build` makes a network of one's own."""
    return read_model(Path(folder), build)[0]


def read_model(folder: Path, build: Callable[[], nn.Module] | None = None) -> tuple[SavedModel, str]:
    """The same, with the digest of what was read: another model may have taken the folder's place since."""
    settings = _read_config(folder)
    try:
        raw = _read_files(folder, settings)
    except UserError:
        if _read_config(folder) == settings:
            raise
        return read_model(folder, build)  # not damaged: replaced, between one file and the next
    with _blaming(folder, WEIGHTS):
        weights = safetensors.torch.load(raw[WEIGHTS])
    with _blaming(folder, LEDGER, also=UserError):
        ledger = read_ledger(json.loads(raw[LEDGER]))
    acceptance = _read_acceptance(folder, raw[ACCEPTANCE]) if ACCEPTANCE in raw else None
    statistics = None
    if STATISTICS in raw:
        with _blaming(folder, STATISTICS):
            statistics = _statistics(raw[STATISTICS], settings)
    elif settings.statistics is not None:
        raise _damaged(folder, f"{SETTINGS} does not list {STATISTICS}")
    config = _training(folder, settings)
    _refuse_missing_packages(folder, settings.packages)
    with _blaming(folder, SETTINGS, also=UserError):
        preprocessing = Preprocessing.from_dict(settings.preprocessing)
        architecture = _architecture(settings, preprocessing)
    with _blaming(folder, SETTINGS):
        classifier = _classifier(folder, settings, config, architecture, preprocessing, weights, build)
    model = SavedModel(
        classifier.eval(), config, ledger, tuple(settings.lineage), settings.rejection, acceptance, statistics
    )
    return model, _named(settings, raw)


def _statistics(raw: bytes, settings: ModelConfig) -> ClassStatistics:
    found = ClassStatistics.from_state(safetensors.torch.load(raw))
    if len(found) != len(settings.classes):
        raise ValueError(f"statistics of {len(found)} classes instead of {len(settings.classes)}")
    wanted = settings.statistics
    if wanted is not None and StatisticsRecord.of(found) != wanted:
        features = found.means.shape[1]
        raise ValueError(
            f"statistics of the form {found.form!r} with {features} features instead of {wanted.form!r} with "
            f"{wanted.features}"
        )
    if found.fixed is not None and (found.fixed.shape[1] != COUNT or bool((found.fixed < 0).any())):
        raise ValueError(f"the means of fixed features are not {COUNT} numbers of zero and more a class")
    return found


def model_digest(folder: Path) -> str:
    """Names the model in the lineage of those that are made from it: equal only for equal files."""
    settings = _read_config(folder)
    return _named(settings, _read_files(folder, settings) if settings.schema_version == 1 else {})


def _read_config(folder: Path) -> ModelConfig:
    """`config.json`, of this or an older schema, found to be as it was written."""
    with explaining("read", READABLE):
        if not (folder / SETTINGS).is_file():
            raise UserError(_why_no_model(folder))
    raw = _unchanged(folder, SETTINGS, None)
    with _blaming(folder, SETTINGS):
        values = json.loads(raw)
        schema, version = int(values["schema"]), values["reverie"]
    if schema > SCHEMA:
        raise UserError(f"{folder} was written by a newer reverie ({version}); this is {__version__}. Please upgrade.")
    if schema > 1 and values.get("digest") != _digest(values):
        raise _damaged(folder, f"{SETTINGS} has been changed since it was written")
    with _blaming(folder, SETTINGS, also=UserError):
        return as_record(ModelConfig, _upgraded(values, _sha256(raw)) if schema == 1 else values)


def _why_no_model(folder: Path) -> str:
    if not folder.exists():
        beside = [entry.parent.name for entry in folder.parent.glob(f"*/{SETTINGS}")]
        return f"There is no model folder {folder}.{did_you_mean(folder.name, beside)}"
    if (folder / "model" / SETTINGS).is_file():
        return f"{folder} is not a model folder; the run's model is in {folder / 'model'}."
    return f"{folder} is not a model folder: it has no {SETTINGS}."


def _upgraded(values: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """From schema 1, which named networks otherwise, and listed no files."""
    net = {"family": "reverie", "name": values["net"], "options": {}}
    added = {"architecture": net, "rejection": None, "lineage": [], "training": values["run"], "digest": digest}
    return {**values, **added}


def _read_files(folder: Path, settings: ModelConfig) -> dict[str, bytes]:
    """The other files, whole and unchanged. The card is for people, who may write in it: that is only warned of."""
    listed: dict[str, FileRecord | None] = {**settings.files}
    if settings.schema_version == 1 and not listed:
        listed = {WEIGHTS: None, LEDGER: None}
    for name in (WEIGHTS, LEDGER):
        if name not in listed:
            raise _damaged(folder, f"{SETTINGS} does not list {name}")
    raw = {name: _unchanged(folder, name, listed[name]) for name in FILES if name in listed and name != CARD}
    try:
        if CARD in listed:
            _unchanged(folder, CARD, listed[CARD])
    except UserError:
        if _read_config(folder) == settings:  # else another model has just taken its place
            log.warning("%s is not as reverie wrote it. The model and its ledger are.", folder / CARD)
    return raw


def _unchanged(folder: Path, name: str, wanted: FileRecord | None) -> bytes:
    with explaining("read", READABLE):
        if not (folder / name).is_file():
            raise _damaged(folder, f"{name} is missing")
        raw = (folder / name).read_bytes()
    if wanted is not None and len(raw) != wanted.bytes:
        raise _damaged(folder, f"{name} has {len(raw):,} bytes instead of {wanted.bytes:,}")
    if wanted is not None and _sha256(raw) != wanted.sha256:
        raise _damaged(folder, f"{name} has been changed since it was written")
    return raw


def _read_acceptance(folder: Path, raw: bytes) -> Acceptance | None:
    """It is for people: a model whose report was written by another version predicts all the same."""
    try:
        return parse_record(Acceptance, raw)
    except UserError as error:
        log.warning("The report in %s is left aside: %s", folder / ACCEPTANCE, first_line(error))
        return None


def _training(folder: Path, settings: ModelConfig) -> Config:
    try:
        return Config.from_dict(settings.training)
    except UserError as error:
        raise UserError(
            f"{error} {folder / SETTINGS} was written by reverie {settings.reverie}; this is {__version__}."
        ) from None


def _architecture(settings: ModelConfig, preprocessing: Preprocessing) -> Architecture:
    """Found to be one that there can be, before room is made for it. Others' libraries are asked later."""
    architecture = Architecture.from_dict(settings.architecture.as_dict())
    if architecture.family == "reverie":
        check_network(architecture)
    if (size := architecture.options.get("size", preprocessing.size)) != preprocessing.size:
        raise ValueError(f"a network for {size} pixels, and images of {preprocessing.size}")
    return architecture


def _classifier(
    folder: Path,
    settings: ModelConfig,
    config: Config,
    architecture: Architecture,
    preprocessing: Preprocessing,
    weights: dict[str, Tensor],
    build: Callable[[], nn.Module] | None,
) -> Classifier:
    rows = settings.head_rows
    if len(weights["head.weight"]) != rows or rows < len(settings.classes):
        raise ValueError(f"{rows} rows for {len(settings.classes)} classes")
    backbone = make_backbone(architecture, preprocessing.channels, build=build)
    classifier = Classifier(backbone, preprocessing, config.seed, rows)
    classifier.grow(settings.classes)
    with _blaming(folder, WEIGHTS, also=UserError):
        classifier.load_answer(weights)
        if settings.answering not in (None, found := _answering(classifier)):
            raise ValueError(f"it answers by {found!r} instead of {settings.answering!r}")
    state = as_state_of(classifier, weights)
    if build is not None and backbone.architecture.family == "own":
        _refuse_another_network(classifier, state)
    classifier.load_state_dict(state)
    return classifier


def _refuse_another_network(classifier: Classifier, state: Mapping[str, Tensor]) -> None:
    """The files are as they were written, so it is the function that makes something else now."""
    ours = {name: list(tensor.shape) for name, tensor in classifier.state_dict().items()}
    theirs = {name: list(tensor.shape) for name, tensor in state.items()}
    for name in (name for name in (*theirs, *ours) if theirs.get(name) != ours.get(name)):
        was, now = (shapes.get(name, "not there") for shapes in (theirs, ours))
        raise UserError(
            f"The function given as `build` does not build the network that was saved: "
            f"{name.removeprefix('backbone.body.')} was {was} and is {now}."
        )


@contextmanager
def _blaming(folder: Path, name: str, also: type[Exception] = SafetensorError) -> Iterator[None]:
    """Whatever goes wrong with what stands in a file is the file's fault."""
    try:
        yield
    except (*STRANGE_CONTENT, also) as error:
        raise _damaged(folder, f"{name} is not what reverie writes ({first_line(error).rstrip('.')})") from None


def _damaged(folder: Path, why: str) -> UserError:
    return UserError(f"The model in {folder} is damaged: {why}. Fetch it anew from where it came.")


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _named(settings: ModelConfig, raw: Mapping[str, bytes]) -> str:
    """The settings name the other files by their digests; those of schema 1 do not."""
    if settings.schema_version > 1:
        return settings.digest
    return _sha256("".join([settings.digest, *(_sha256(raw[name]) for name in (WEIGHTS, LEDGER))]).encode())


def _digest(values: Mapping[str, Any]) -> str:
    """However the JSON is laid out, and without the digest itself."""
    rest = {key: value for key, value in values.items() if key != "digest"}
    return _sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())
