"""The verbs that make and use model folders, one small function each. Parse, call, print; help loads no torch."""

from __future__ import annotations

from reverie.cli import app, console

__all__ = ["app", "console"]

# --- learning from folders


# --- taking in somebody's own model


# --- using a model
