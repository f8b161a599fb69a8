"""The version, without loading anything."""

__version__ = "0.1.0"
