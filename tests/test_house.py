"""The map of the house in CONTRIBUTING.md is true: every room is on it, and nothing lower imports anything higher.

And `make check-oldest` is about the versions that pyproject.toml allows.
"""

import ast
import re
import tomllib
from pathlib import Path

import reverie

HOUSE = Path(reverie.__file__).parent
DOORS = {"__init__", "__main__", "version"}


def floors() -> dict[str, int]:
    """Rooms, and how far down they are."""
    text = (HOUSE.parent / "CONTRIBUTING.md").read_text()
    rows = text[text.index("## Where things are") : text.index("## How to add")].splitlines()
    cells = [row.split("|")[2] for row in rows if row.startswith("| ")][1:]
    return {name: floor for floor, cell in enumerate(cells) for name in re.findall(r"`(\w+)(?:\.py|/)`", cell)}


def imported(file: Path) -> set[str]:
    """Rooms that a file imports when it is loaded."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "reverie":
            inner = node.module.split(".")[1:]
            found |= {inner[0]} if inner else {alias.name for alias in node.names}
    return found


def test_every_room_is_on_the_map():
    rooms = {entry.name.removesuffix(".py") for entry in HOUSE.iterdir() if entry.suffix in ("", ".py")}
    assert rooms - DOORS - {"__pycache__"} == floors().keys()


def test_nothing_lower_imports_anything_higher():
    down = floors()
    wrong = [
        f"{file.relative_to(HOUSE)} imports {room}"
        for file in sorted(HOUSE.rglob("*.py"))
        if (here := file.relative_to(HOUSE).parts[0].removesuffix(".py")) not in DOORS
        for room in imported(file)
        if down.get(room, 99) < down[here]
    ]
    assert not wrong


def test_the_oldest_versions_that_are_tried_are_the_oldest_that_are_allowed():
    project = tomllib.loads((HOUSE.parent / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in ("timm", "tensorboard", "export")]
    needed = [line.split(">=") for lines in (project["dependencies"], *extras) for line in lines]
    pins = re.findall(r"^(\S+)==(\S+)$", (HOUSE.parent / "constraints-oldest.txt").read_text(), re.MULTILINE)
    tried = {name: tuple(map(int, number.split("."))) for name, number in pins}
    allowed: dict[str, tuple[int, ...]] = {}
    for name, number in needed:
        allowed[name] = max(allowed.get(name, ()), tuple(map(int, number.split("."))))
    allowed["torchvision"] = (0, 22)  # the one that belongs to this torch
    assert {name: number[: len(allowed[name])] for name, number in tried.items()} == allowed
