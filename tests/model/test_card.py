"""The model card: what a person and the Hugging Face hub want to know of a model, with the ledger as a table."""

import pytest
import yaml
from markdown_it import MarkdownIt

from reverie.learner.ledger import LedgerEntry
from reverie.model.adoption import first_step_by_others
from reverie.model.card import model_card
from reverie.model.saved import SavedModel
from tests.support.models import awkward_model


@pytest.fixture
def saved() -> SavedModel:
    return awkward_model()


def test_the_card_begins_as_the_hub_expects(saved):
    _, front, _ = model_card(saved).split("---\n", 2)
    values = yaml.safe_load(front)
    assert (values["library_name"], values["pipeline_tag"]) == ("reverie", "image-classification")
    assert all(isinstance(tag, str) for tag in values["tags"])


def test_names_cannot_break_the_card(saved):
    """Rendered with HTML allowed, every name is text in a cell of its own, and nothing else is there."""
    text = model_card(saved).split("---\n", 2)[2]
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    inline = [token for token in tokens if token.type == "inline"]
    kinds = {child.type for token in inline for child in token.children} | {token.type for token in tokens}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "em_open"}
    rows = [[]]
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append("".join(child.content for child in token.children))
    (step,) = [row for row in rows if row and row[0] == "1"]
    assert step[1:3] == ["2026-03-01", "photos | <b>2025</b>"]
    shown = step[3]
    for name in ("a|b", "`code`", "<script>alert(1)</script>", "🍎👩‍🌾", "../up/down", "[x](y)", "ch(U+DCE9)rie"):
        assert name in shown
    assert step[4:8] == [
        "1,200 and 300 held out",
        "0f" * 16,
        "weights 311,000 bytes; statistics 2,000 bytes; 0 images",
        "images, file names",
    ]
    assert ["a|b", "50.0 % of 4"] in [row[:2] for row in rows]
    assert "Verdict: look closer" in text
    assert "confidence below 0.600" in text


def test_the_card_names_the_models_it_was_extended_from_and_how_it_was_learned_last(saved):
    text = model_card(saved)
    assert f"Extended from the models (oldest first):\n\n- `{'ab' * 32}`" in text
    assert "learned last with the method `abd`, recipe `paper`, seed 0" in text
    saved.lineage = ()
    assert "Extended from" not in model_card(saved)


def test_a_model_that_was_adopted_claims_no_teaching(saved):
    made = first_step_by_others(saved.classifier, "weights.pth")
    text = model_card(SavedModel(made.classifier, made.config, made.ledger))
    assert "adopted as somebody else trained it, and taught nothing since" in text
    assert "learned last" not in text


def test_without_a_report_or_a_threshold_the_card_is_silent_about_them(saved):
    saved.acceptance = saved.rejection = None
    assert "Verdict" not in model_card(saved) and "--reject" not in model_card(saved)


def test_a_thousand_classes_do_not_fill_the_card(saved):
    names = [f"class {number}" for number in range(1000)]
    saved.ledger = [LedgerEntry(classes=names, images_seen=5)]
    assert "class 29 and 970 more" in model_card(saved)


def test_entries_of_other_deeds_and_older_ledgers_stand_in_the_card_too(saved):
    saved.ledger = [
        LedgerEntry(task=1, classes=["0"], images_seen=5, keeps="nothing", kept_bytes=0),
        LedgerEntry(date="2026-01-01T00:00:00+00:00", action="remove", removed=["b"]),
        LedgerEntry(date="2026-01-02T00:00:00+00:00", action="rename", renamed={"c": "d"}),
        LedgerEntry(classes=[], refined=["d"], weights="w.pth", source="photos"),
        LedgerEntry(),
    ]
    card = model_card(saved)
    assert "| 1 | – | – | 0 | 5 | – | nothing (0 bytes) | – |" in card
    assert "| 2 | 2026-01-01 | – | remove: b | – | – | – | – |" in card
    assert "| 3 | 2026-01-02 | – | rename: c → d | – | – | – | – |" in card
    assert "| 4 | – | photos, weights w.pth | more of d | – | – | – | – |" in card
    assert "| 5 | – | – | – | – | – | – | – |" in card
