"""From the words of Python to those of the command line, and from words to values."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from typer.main import get_command

import reverie as package
from reverie.cli.app import app
from reverie.cli.data import data_app
from reverie.cli.verbs import COMMANDS, in_flags, parse_names, parse_numbers, parse_whole_numbers
from reverie.errors import UserError
from tests.support.mistakes import PYTHON

CALLBACKS = [command.callback for command in (*app.registered_commands, *data_app.registered_commands)]


def params(verb):
    return get_command(app).commands[verb].params


@pytest.mark.parametrize(
    ("verb", "python", "typed"),
    [
        ("table", "Choose another `out`.", "Choose another --out."),
        ("run", "`seed` is too large, `settings` are none.", "--seed is too large, --set are none."),  # the longer form
        ("run", "with `share_first_task=True`", "with --share-first-task"),
        ("learn", "leave `old` out", "leave --from out"),
        ("learn", 'say `on_known_class="refine"`', "say --on-known-class refine"),
        ("learn", "which `folder`", "which FOLDER"),
        ("table", "which `preset`", "which PRESET"),
        ("run", "`list_presets()` names them", "`reverie presets` names them"),
        ("run", "`list_methods()` and `list_datasets()`", "`reverie methods` and `reverie data list`"),
        ("classes", "`list_classes(model)` names what it knows", "`reverie classes MODEL` names what it knows"),
        ("diagnose", "let `diagnose_paper()` make them", "let `reverie diagnose --paper` make them"),
        ("run", "`download_dataset('cifar10')`", "`reverie data get cifar10`"),
        ("run", "`download_dataset('cifar10', 'my data')` does", "`reverie data get cifar10 --data my data` does"),
        ("run", """`download_dataset('cifar10', "it's")` does""", "`reverie data get cifar10 --data it's` does"),
        ("learn", "`evaluate` does", "`reverie evaluate` does"),
    ],
)
def test_a_message_of_the_library_is_put_into_the_words_of_the_command_line(verb, python, typed):
    assert in_flags(python, params(verb)) == typed


@pytest.mark.parametrize(
    "text",
    [
        "The class 'a|b`c`' has a single image.",
        "`notes` is not an image; `my photo.jpg` is",
        "'`$(rm -rf)`' is unknown",
        "it must hold sections such as `data:` and `train: {epochs: 5}`",
        "out, seed and `an out` are words",
    ],
)
def test_what_a_person_wrote_is_left_alone(text):
    assert in_flags(text, params("run")) == text


def test_a_verb_may_have_words_of_its_own():
    words = {"`reject=0.7`": "--threshold 0.7", "a budget of 30min would": "--budget 30min would"}
    assert in_flags("say one, such as `reject=0.7`", params("predict"), words) == "say one, such as --threshold 0.7"
    assert in_flags("a budget of 30min would do", (), words) == "--budget 30min would do"


def test_every_function_that_is_put_into_a_command_is_one_that_python_has():
    for pattern, typed in COMMANDS.items():
        assert pattern.partition("\\")[0] in package.__all__
        words = typed.strip("`").split()
        assert words[0] == "reverie"
        known = {callback.__name__.replace("_", " ") for callback in CALLBACKS}
        assert words[1] in known or " ".join(words[1:3]) in known


def messages():
    """Every text of the package that names something in backquotes, and is raised or is advice on what to do."""
    for file in sorted(Path(package.__file__).parent.rglob("*.py")):
        for call in [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]:
            if getattr(call.func, "id", "") in ("UserError", "explaining"):
                texts = [part.value for part in ast.walk(call) if isinstance(part, ast.Constant)]
                yield from (text for text in texts if isinstance(text, str) and PYTHON.search(text))


def test_every_argument_that_a_message_names_is_an_argument_of_some_verb():
    """What the others become is seen where people's mistakes are tested, verb by verb."""
    arguments = {name for callback in CALLBACKS for name in inspect.signature(callback).parameters}
    of_python_alone = {"names", "build", "config", "observer", "images"}  # which no verb hands on
    named = {name for text in messages() for name in re.findall(r"`(\w+)(?:=[^`]*)?`", text)} - COMMANDS.keys()
    assert {"out", "data", "grid", "to", "mirrors"} <= named
    assert named <= arguments | of_python_alone


# --- from words to values


def test_names_and_numbers_are_separated_by_commas():
    assert parse_names(" base, lwf ,", "--methods") == ["base", "lwf"]
    assert parse_whole_numbers("2,0,2, 1", "--seeds") == [2, 0, 1]
    assert parse_numbers("0.5,1,2e-1", "--mean") == (0.5, 1.0, 0.2)
    assert parse_numbers(None, "--mean") is None


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_names, " , ", "--flag wants one or several names, with commas between them, not ' , '."),
        (parse_whole_numbers, "1,a", "--flag wants numbers such as 0,1,2, not '1,a'."),
        (parse_whole_numbers, "", "--flag wants numbers such as 0,1,2, not ''."),
        (parse_numbers, "0.5,", "--flag wants a number a channel, such as 0.5,0.5,0.5, not '0.5,'."),
    ],
)
def test_what_is_none_is_told_with_the_flag(parse, text, message):
    with pytest.raises(UserError) as refused:
        parse(text, "--flag")
    assert str(refused.value) == message
