"""A model as one file that is served without reverie: pixels in, probabilities out, everything between them inside.

The input is what Pillow, numpy and cameras have: uint8 [images, size, size, channels], any number of images. What must
be done to a file before, docs/serving.md says to the letter.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from reverie import seeding
from reverie.config.choices import ExportFormat
from reverie.data.preprocessing import Normaliser
from reverie.errors import UserError
from reverie.model.opening import AnyModel, open_model
from reverie.model.saved import SavedModel
from reverie.nets.classifier import Classifier
from reverie.system.files import check_target, write_bytes
from reverie.text import first_line
from reverie.version import __version__

TOLERANCE = 1e-3  # of a probability
BLAME = "The following call raised this error:"  # in torch's messages
INPUT, OUTPUT = "pixels", "probabilities"


SUFFIXES: dict[ExportFormat, str] = {"onnx": ".onnx", "torch": ".pt2"}


@dataclass(frozen=True)
class Exported:
    """The file, what it takes, and how far its probabilities are from PyTorch's; none where that was not checked."""

    file: Path
    input: str
    difference: float | None

    def __str__(self) -> str:
        return f"{self.file}: {self.about()}"

    def about(self) -> str:
        """What it takes, and how it was checked."""
        if self.difference is None:
            checked = "not compared with PyTorch, since onnxruntime is not installed"
        else:
            checked = f"probabilities differ from PyTorch's by {self.difference:.1g} at most"
        return f"takes {self.input}; {checked}"


class Served(nn.Module):
    """A classifier together with what comes before and after it."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = copy.deepcopy(classifier).cpu().eval().requires_grad_(False)
        shape = classifier.preprocessing
        normaliser = Normaliser.of(shape)
        self.register_buffer("mean", normaliser.mean)
        self.register_buffer("deviation", normaliser.deviation)

    def forward(self, pixels: Tensor) -> Tensor:
        images = pixels.permute(0, 3, 1, 2).float() / 255
        logits: Tensor = self.classifier.answer((images - self.mean) / self.deviation)
        return logits.softmax(dim=1)


def export_model(
    model: AnyModel, to: ExportFormat, out: Path | str | None = None, *, overwrite: bool = False
) -> Exported:
    """Write a model as one file that is served without reverie, after its predictions were compared with PyTorch's.

        reverie.export_model("flowers", "onnx", "flowers.onnx")

    `model` is a folder, or a learner. `to` is "onnx", for onnxruntime and others, or "torch" (torch.export). `out` is
    the file; left out, it is named after the model's folder. Raises UserError where packages are missing, or the
    network cannot be exported.
    """
    if to not in get_args(ExportFormat):
        raise UserError(f"A model is exported to {' or '.join(get_args(ExportFormat))}, not {to!r}.")
    folder, saved = Path(model) if isinstance(model, str | Path) else None, open_model(model)
    file = Path(out) if out is not None else Path(f"{folder.resolve().name if folder else 'model'}{SUFFIXES[to]}")
    if file.suffix.lower() in {*SUFFIXES.values()} - {SUFFIXES[to]}:
        raise UserError(f'With `to="{to}"`, {file} should end in {SUFFIXES[to]}.')
    check_target(file, overwrite, folder)
    served, stated = Served(saved.classifier), facts(saved)
    content, ask = _onnx(served, stated) if to == "onnx" else _torch(served, stated)
    difference = None
    if ask is not None:
        shape = saved.classifier.preprocessing
        difference = max(_difference(served, ask, _noise(count, shape.size, shape.channels)) for count in (1, 5))
        if not difference <= TOLERANCE:
            other = "torch" if to == "onnx" else "onnx"
            raise UserError(
                f"The exported model does not predict as this one does (a probability is off by {difference:.2g}), "
                f'so it was not written. Try `to="{other}"`.'
            )
    write_bytes(file, content)
    return Exported(file, stated["input"], difference)


def facts(model: SavedModel) -> dict[str, str]:
    """What stands in the file beside the network, for those who serve it."""
    shape = model.classifier.preprocessing
    stated = {
        "classes": _json(model.classifier.class_names),
        "size": str(shape.size),
        "mode": "L" if shape.channels == 1 else "RGB",
        "input": f"uint8 [images, {shape.size}, {shape.size}, {shape.channels}], pixels from 0 to 255",
        "output": "probabilities in the order of the classes",
        "reverie": __version__,
    }
    return stated if model.rejection is None else {**stated, "rejection": str(model.rejection)}


def _json(content: Any) -> str:
    """Legible, unless a folder's name gave a class one that is no text."""
    text = json.dumps(content, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(content)
    return text


Ask = Callable[[Tensor], Tensor]  # pixels in, probabilities out


def _onnx(served: Served, stated: dict[str, str]) -> tuple[bytes, Ask | None]:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Exporting to ONNX needs {' and '.join(missing)}: pip install 'reverie[export]'. "
            '`to="torch"` needs neither.'
        )
    import onnx

    program = _traced(served)
    try:
        with _silence():
            made = torch.onnx.export(
                program,
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes={INPUT: {0: "images"}},
                verbose=False,
            )
    except Exception as error:  # torch, onnx and onnxscript are not all made for each other
        versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "onnx", "onnxscript"))
        raise UserError(
            f"The ONNX exporter of these versions fails on this network ({versions}): {first_line(error)} "
            'Newer ones may not; or use `to="torch"`.'
        ) from error
    assert made is not None
    proto, graph = made.model_proto, made.model_proto.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *proto.functions):
        part.ClearField("metadata_props")  # where on this machine each line of code lies
    onnx.helper.set_model_props(proto, stated)
    content = proto.SerializeToString()
    if importlib.util.find_spec("onnxruntime") is None:
        return content, None
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda pixels: torch.from_numpy(session.run(None, {INPUT: pixels.numpy()})[0])


def _torch(served: Served, stated: dict[str, str]) -> tuple[bytes, Ask]:
    buffer = io.BytesIO()
    with _silence():
        torch.export.save(_traced(served), buffer, extra_files={"reverie.json": _json(stated)})
        ask: Any = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    return buffer.getvalue(), ask


def _traced(served: Served) -> torch.export.ExportedProgram:
    """The program of a batch of any size."""
    shape = served.classifier.preprocessing
    pixels, images = _noise(2, shape.size, shape.channels), torch.export.Dim("images", min=1, max=2**31 - 1)
    try:
        program = torch.export.export(served, (pixels,), dynamic_shapes={INPUT: {0: images}}, strict=False)
    except Exception as error:  # tracing runs the network's own code, which may do anything
        raise UserError(f"torch.export cannot follow this network: {_why(error)}") from None
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # where on this machine each line of code lies
    return program


def _why(error: Exception) -> str:
    """What torch says of the network, without its advice: what is wrong, what was found, and the line that did it."""
    lines = [line.strip() for line in str(error).splitlines()]
    parts = [first_line(error).partition(" For more information")[0], *(line[2:] for line in lines if line[:2] == "- ")]
    if BLAME in lines:
        parts += lines[lines.index(BLAME) + 2 :][:1]  # behind the name of the file
    return " ".join(parts)


def _difference(served: Served, ask: Ask, pixels: Tensor) -> float:
    with torch.inference_mode():
        return float((served(pixels) - ask(pixels)).abs().max())


def _noise(count: int, size: int, channels: int) -> Tensor:
    rng = seeding.generator(0, "export", count)
    return torch.randint(0, 256, (count, size, size, channels), generator=rng, dtype=torch.uint8)


@contextmanager
def _silence() -> Iterator[None]:
    """Exporters speak of their own affairs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
