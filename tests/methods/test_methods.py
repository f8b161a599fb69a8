"""Methods by name: reverie's own, those of other packages, those of a script, and what cannot be one."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

import reverie
from reverie.errors import UserError
from reverie.methods import BUILT_IN, find_method, method_names, methods_that_load, register_method
from reverie.methods.base import Method
from reverie.tables.plan import entries_for

ENTRY_POINTS = "reverie.system.plugins.entry_points"


class Theirs(Method):
    """Another way to learn."""

    title = "Theirs"


@pytest.mark.parametrize("name", method_names())
def test_every_method_has_a_title_and_says_what_it_does(name):
    cls = find_method(name)
    assert cls.title
    assert cls.__doc__.strip().splitlines()[0].endswith((".", ")", "head", "old ones,"))


def test_entry_points_add_methods(monkeypatch):
    entry = EntryPoint("theirs", f"{__name__}:Theirs", "reverie.methods")
    monkeypatch.setattr(ENTRY_POINTS, lambda group: [entry] if group == "reverie.methods" else [])
    assert "theirs" in method_names()
    assert find_method("theirs") is Theirs


def test_a_broken_method_of_another_package_hides_none_of_the_others(monkeypatch, caplog):
    gone = EntryPoint("gone", "nowhere.to_be:Found", "reverie.methods")
    monkeypatch.setattr(ENTRY_POINTS, lambda group: [gone])
    assert methods_that_load() == [*BUILT_IN]
    assert (
        "The method 'gone' of another package (nowhere.to_be:Found) cannot be loaded: ModuleNotFoundError"
        in caplog.text
    )
    assert {entry.method for entry in entries_for("digits-5", ["all"])} == {*BUILT_IN}
    with pytest.raises(UserError, match="cannot be loaded"):
        find_method("gone")


class NamesItself(Method):
    @dataclass(frozen=True)
    class Options:
        name: str = "x"


class Demands(Method):
    @dataclass(frozen=True)
    class Options:
        share: float


@pytest.mark.parametrize(
    ("what", "message"),
    [("NamesItself", "an option cannot be called 'name'"), ("Demands", "the option 'share' has no default")],
)
def test_options_that_no_run_could_have_are_refused(monkeypatch, what, message):
    entry = EntryPoint("odd", f"{__name__}:{what}", "reverie.methods")
    monkeypatch.setattr(ENTRY_POINTS, lambda group: [entry])
    assert methods_that_load() == [*BUILT_IN]
    with pytest.raises(UserError, match=f"'odd' .* cannot be loaded: TypeError: {message}"):
        find_method("odd")


@pytest.mark.parametrize("what", ["json", "json:loads", "pathlib:Path"])
def test_an_entry_point_that_leads_to_no_method_is_a_broken_one(monkeypatch, what):
    """A module, a function, a class of another kind."""
    monkeypatch.setattr(ENTRY_POINTS, lambda group: [EntryPoint("odd", what, "reverie.methods")])
    assert methods_that_load() == [*BUILT_IN]
    with pytest.raises(UserError, match=r"'odd' .* cannot be loaded: TypeError: .* is no subclass of"):
        find_method("odd")


@pytest.fixture
def registry(monkeypatch):
    """Nothing that a test registers is there for the next."""
    monkeypatch.setattr("reverie.methods._registered", {})


def test_a_script_adds_a_method_for_its_own_process(registry, tiny):
    register_method("mine", Theirs)
    assert method_names() == [*BUILT_IN, "mine"]
    assert find_method("mine") is Theirs
    assert tiny("mine").method == "mine"
    assert "mine" in [info.name for info in reverie.list_methods()]

    class Better(Theirs):
        pass

    register_method("mine", Better)  # as whoever runs a cell of a notebook again does
    assert find_method("mine") is Better


@pytest.mark.parametrize(
    ("name", "what", "message"),
    [
        ("abd", Theirs, "There is a method 'abd' already. Choose another `name`."),
        ("mine", str, "'mine' cannot be a method: .* is no subclass of reverie.Method"),
        ("mine", 5, "'mine' cannot be a method: 5 is no subclass"),
        ("mine", NamesItself, "'mine' cannot be a method: an option cannot be called 'name'"),
        ("mine", Demands, "'mine' cannot be a method: the option 'share' has no default"),
    ],
)
def test_what_cannot_be_a_method_is_not_registered(registry, name, what, message):
    with pytest.raises(UserError, match=message):
        register_method(name, what)
    assert method_names() == [*BUILT_IN]
