"""`make check-oldest` is about the versions that pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

import reverie

HOUSE = Path(reverie.__file__).parent


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
