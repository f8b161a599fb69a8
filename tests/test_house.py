"""The map of the house in CONTRIBUTING.md is true: every room is on it, and nothing lower imports anything higher."""

import ast
import re
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
