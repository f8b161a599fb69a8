"""The version, without loading anything."""

__version__ = "0.2.0.dev0"
