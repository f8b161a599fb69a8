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


class KeepsWords(Method):
    keeps = "class statistics"


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

    again = type("Theirs", (Method,), {"title": "Theirs", "__module__": Theirs.__module__})
    register_method("mine", again)  # as whoever runs a cell of a notebook again does
    assert find_method("mine") is again


def test_a_name_is_of_one_class_and_another_is_refused(registry):
    class Better(Theirs):
        pass

    register_method("mine", Theirs)
    with pytest.raises(UserError, match=r"There is a method 'mine' already\. Choose another `name`\."):
        register_method("mine", Better)
    assert find_method("mine") is Theirs


@pytest.mark.parametrize(
    "name", ["", "all", "-m", "a b", "a/b", "../m", "a,b", "a\n", "méthode", "x" * 65, 5, None, ["mine"]]
)
def test_a_name_that_no_folder_or_flag_could_have_is_refused(registry, name):
    with pytest.raises(UserError, match="`name` is up to 64 letters, digits, - and _"):
        register_method(name, Theirs)
    assert method_names() == [*BUILT_IN]


def test_letters_digits_and_lines_make_a_name(registry):
    for name in ("x" * 64, "Mine-2_b", "2mine", "_m"):
        register_method(name, Theirs)
        assert find_method(name) is Theirs


@pytest.mark.parametrize("name", [None, 5, ["abd"], "x" * 300_000])
def test_what_is_no_name_of_a_method_is_refused_in_a_line(name):
    with pytest.raises(UserError, match=r"^(A method is named by text|There is no method) .{1,200}$"):
        find_method(name)


@pytest.mark.parametrize(
    ("name", "what", "message"),
    [
        ("abd", Theirs, "There is a method 'abd' already. Choose another `name`."),
        ("mine", str, "'mine' cannot be a method: .* is no subclass of reverie.Method"),
        ("mine", 5, "'mine' cannot be a method: 5 is no subclass"),
        ("mine", NamesItself, "'mine' cannot be a method: an option cannot be called 'name'"),
        ("mine", Demands, "'mine' cannot be a method: the option 'share' has no default"),
        ("mine", KeepsWords, r"its `keeps` must be of reverie\.Keeps\.NOTHING, .* by |, not 'class statistics'"),
    ],
)
def test_what_cannot_be_a_method_is_not_registered(registry, name, what, message):
    with pytest.raises(UserError, match=message):
        register_method(name, what)
    assert method_names() == [*BUILT_IN]
