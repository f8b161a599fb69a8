"""What verbs are made of: the command itself, the options that several share, and the way from messages to flags.

The library's messages name arguments and functions in backquotes, as Python has them: "Choose another `out`." Here they
become what a person types: "Choose another --out."
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from reverie.errors import UserError

app = typer.Typer(
    name="reverie",
    help="Teach an image classifier new classes without keeping one old image.",
    epilog="Begin with: reverie demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
EXPERIMENTS, MODELS, PAGES = "Experiments", "Your own classifier", "Looking at runs"  # groups of verbs

DataFolder = Annotated[
    Path, typer.Option("--data", envvar="REVERIE_DATA", help="Where data sets lie, or your own folder of images.")
]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
SettingTexts = Annotated[
    list[str] | None, typer.Option("--set", help="Change a value: section.key=value. May be given several times.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")]
CheckpointEvery = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints inside a phase.")]
PresetArgument = Annotated[
    str,
    typer.Argument(
        metavar="PRESET", help="A preset's name (see `reverie presets`) or a YAML file.", show_default=False
    ),
]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.", show_default=False)]

# Functions that messages name, as the command line has them.
COMMANDS = {
    r"list_presets\(\)": "`reverie presets`",
    r"list_methods\(\)": "`reverie methods`",
    r"list_datasets\(\)": "`reverie data list`",
    r"list_classes\(model\)": "`reverie classes MODEL`",
    r"diagnose_paper\(\)": "`reverie diagnose --paper`",
    r"download_dataset\('([^']*)'\)": r"`reverie data get \1`",
    r"download_dataset\('([^']*)', (['\"])(.*)\2\)": r"`reverie data get \1 --data \3`",
    r"check_dataset": "`reverie data check`",
    r"download_dataset": "`reverie data get`",
    r"evaluate": "`reverie evaluate`",
    r"run": "`reverie run`",
}


def in_flags(message: str, params: Sequence[Any] = (), words: Mapping[str, str] | None = None) -> str:
    """A message of the library in the words of the command line."""
    for pattern, command in COMMANDS.items():
        message = re.sub(f"`{pattern}`", command, message)
    for old, new in (words or {}).items():
        message = message.replace(old, new)
    shown = {param.name: _shown(param) for param in params}

    def flag(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name not in shown:
            return found[0]
        return shown[name] if value in (None, "True") else f"{shown[name]} {value.strip(chr(34))}"

    return re.sub(r"`(\w+)(?:=([^`]*))?`", flag, message)


def _shown(param: Any) -> str:
    """An option as it is typed, an argument as help calls it."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper()).strip("[]")
    return str(max(param.opts, key=len))


class Verb(TyperCommand):
    """One verb, whose errors speak of flags."""

    words: Mapping[str, str] = {}

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise UserError(in_flags(str(error), self.params, self.words)) from None


def verb(
    panel: str | None = None,
    *,
    example: str,
    name: str | None = None,
    to: typer.Typer = app,
    words: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function a verb. `words` are further phrases of the library's messages, and what a person types."""
    made = type("Verb", (Verb,), {"words": words or {}})
    return to.command(name, cls=made, rich_help_panel=panel, epilog=f"Example: {example}")


def parse_names(text: str, option: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise UserError(f"{option} wants one or several names, with commas between them, not {text!r}.")
    return names


def parse_whole_numbers(text: str, option: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UserError(f"{option} wants numbers such as 0,1,2, not {text!r}.") from None


def parse_numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    try:
        return tuple(float(part) for part in text.split(",")) if text is not None else None
    except ValueError:
        raise UserError(f"{option} wants a number a channel, such as 0.5,0.5,0.5, not {text!r}.") from None
