"""YAML as people write it: every key once, 1e-3 is a number, and no text that grows without bound when it is read."""

from __future__ import annotations

import re
from typing import Any

import yaml

MOST_BYTES = 200 << 10  # of a file
MOST_VALUES = 20_000  # of a document, what its aliases stand for counted as often as they stand there


class TooLarge(yaml.YAMLError):
    """The document is larger, or deeper, than any configuration is."""


def parse_yaml(raw: bytes | str, exponents: bool = True) -> Any:
    """The values of a document. Raises yaml.YAMLError, or ValueError for numbers and dates that are none.

    Without `exponents`, 1e-3 is text, as it is to `yaml.safe_dump`, which puts no quotes around a digest like 12e34.
    """
    if len(raw) > MOST_BYTES:
        raise TooLarge(f"it is larger than {MOST_BYTES >> 10} kB")
    try:
        loader = (_Loader if exponents else _EachKeyOnce)(raw)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _refuse_growth(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise TooLarge("it is nested too deeply") from None
    except (LookupError, TypeError, AttributeError):  # the library's way to say so, of `!!bool x` for one
        raise yaml.YAMLError("a value is not what its tag says") from None


def _refuse_growth(document: yaml.Node) -> None:
    """Aliases of aliases may stand for more values than any memory holds, in a few lines."""
    sizes: dict[yaml.Node, int] = {}

    def size(node: yaml.Node) -> int:
        if node in sizes:
            return sizes[node]
        sizes[node] = MOST_VALUES + 1  # should it hold itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for pair in inner for part in pair] if isinstance(node, yaml.MappingNode) else inner
        sizes[node] = 1 + sum(size(part) for part in parts)
        return sizes[node]

    if size(document) > MOST_VALUES:
        raise TooLarge(f"it holds more than {MOST_VALUES:,} values")


class _EachKeyOnce(yaml.SafeLoader):
    """Safe loading that refuses a key given twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in keys[:place]:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
        return super().construct_mapping(node, deep)


class _Loader(_EachKeyOnce):
    """For what people write."""


_Loader.add_implicit_resolver(  # YAML 1.1 takes 1e-3, without a point and a sign, for text
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
