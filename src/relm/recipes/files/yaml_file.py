"""Safe reading of YAML files: only regular files of bounded size, depth and content are accepted.

Anchors, aliases, merge keys and tags are errors: recipes do not need them, and they make YAML dangerous to read.
"""

import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from relm.errors import RelmError

LARGEST = 4 << 20  # bytes; a dataset of ten thousand files needs less
DEEPEST = 32
LONGEST_KEY = 200
LONGEST_NUMBER = 100
LONGEST_NUMBER_AS_KEY = 18  # Python hashes integers modulo 2**61 - 1, so larger ones can be chosen to collide
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
# Characters outside YAML's printable set, written plainly or as an escape.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_DIRECTIVE = re.compile("^%", re.MULTILINE)
_BOOLEAN = "tag:yaml.org,2002:bool"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# Numbers that YAML 1.1 reads in base 8, 2 or 60, to a reader's surprise.
_OTHER_BASE = re.compile(r"[-+]?0[0-7_]+|[-+]?0b[01_]+|[-+]?[0-9_]+(:[0-5]?[0-9])+(\.[0-9_]*)?")
# A number to everybody who writes it, and in YAML 1.2; YAML 1.1 wants a point, as in 1.0e-3.
_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")
_MERGE = "tag:yaml.org,2002:merge"
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Fault(Exception):
    """A fault in the text, with its line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f", line {line}: {message}")


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8; never block. Raise FileNotFoundError or, for all other faults, RelmError."""
    try:
        content = _content(path)
    except FileNotFoundError:
        if path.is_symlink():
            raise RelmError(f"{path}: is a link to {os.readlink(path)}, which does not exist; correct or delete it") from None
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RelmError(f"{path}: cannot be read: {reason}; correct the path or its permissions") from None
    if len(content) > LARGEST:
        raise RelmError(f"{path}: has more than {LARGEST >> 20} MiB; a file of this kind is far smaller")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise RelmError(f"{path}: is UTF-16; save the file as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from the end of the byte order mark.
        start = error.start + (len(content) - len(error.object))
        line = content[:start].count(b"\n") + 1
        raise RelmError(f"{path}, line {line}: byte {start} is not UTF-8; save the file as UTF-8") from None


def _content(path: Path) -> bytes:
    """Return at most one byte more than is allowed; the checks apply to the opened file, as the path may change meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)  # a pipe without a writer would block
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind != stat.S_IFREG:
            raise RelmError(f"{path}: is {_KINDS.get(kind, 'not a file')}; expected a file; move it away or rename it")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST + 1)
    finally:
        os.close(descriptor)


def parse_yaml(text: str, path: Path) -> Any:
    """Return the one document in the YAML text of a file as mappings, lists and plain values; errors name file and line."""
    try:
        _require_plain(text)
        loader = _LOADER(text)
        try:
            node = loader.get_single_node()
            return None if node is None else _value(loader, node)
        finally:
            loader.dispose()
    except _Fault as fault:
        raise RelmError(f"{path}{fault}") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f"{path}, line {mark.line + 1}" if mark else path
        raise RelmError(f"{place}: not valid YAML: {problem or error}; check indentation, colons and quotes") from None


def _require_plain(text: str) -> None:
    """Raise an error for text that must not reach PyYAML's recursive composer; the parser of events is not recursive."""
    _require_printable(text, 1)
    if found := _DIRECTIVE.search(text):  # the parser takes quadratic time for many directives
        raise _Fault(text.count("\n", 0, found.start()) + 1, "a directive (%) is not allowed; remove it, or indent the text")
    depth = 0
    events: Iterator[Any] = yaml.parse(text, _LOADER)
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise _Fault(line, f"an alias (*{event.anchor}) is not allowed; write its value out")
        if getattr(event, "anchor", None):
            raise _Fault(line, f"an anchor (&{event.anchor}) is not allowed; remove it, or quote the text")
        if getattr(event, "tag", None):
            raise _Fault(line, f"a tag ({event.tag}) is not allowed; remove it, or quote the text")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise _Fault(line, f"nested more than {DEEPEST} deep; is a bracket left open?")


def _require_printable(text: str, line: int) -> None:
    if found := _UNPRINTABLE.search(text):
        line += text.count("\n", 0, found.start())
        raise _Fault(line, f"the character U+{ord(found[0]):04X} is not allowed; delete it")


def _value(loader: Any, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item) for item in node.value]
    return _scalar(loader, node)


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    """Construct a mapping; a key that is given twice is an error."""
    found: dict[Any, Any] = {}
    lines: dict[Any, int] = {}
    for key_node, value_node in node.value:
        key, line = _key(loader, key_node), key_node.start_mark.line + 1
        if key in found:
            raise _Fault(line, f"key '{key}' was already given in line {lines[key]}")
        found[key], lines[key] = _value(loader, value_node), line
    return found


def _key(loader: Any, node: yaml.Node) -> Any:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.ScalarNode):
        kind = "mapping" if isinstance(node, yaml.MappingNode) else "list"
        raise _Fault(line, f"a key is a {kind}; quote it if the brackets belong to the text")
    if node.tag == _MERGE:
        raise _Fault(line, "a merge key (<<) is not allowed; write the keys out")
    if len(node.value) > LONGEST_KEY:
        raise _Fault(line, f"a key of {len(node.value):,} characters; at most {LONGEST_KEY} are expected")
    if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER_AS_KEY:
        raise _Fault(line, f"a number of {len(node.value)} characters as a key; quote it if it is text")
    if node.tag == _BOOLEAN:  # a recipe has the key `on`
        return str(node.value)
    return _scalar(loader, node)


def _scalar(loader: Any, node: Any) -> Any:
    text, line = str(node.value), node.start_mark.line + 1
    _require_printable(text, line)
    if node.tag in _NUMBERS and len(text) > LONGEST_NUMBER:  # Python cannot convert or print very long integers
        raise _Fault(
            line, f"a number of {len(text):,} characters; at most {LONGEST_NUMBER} are expected; quote it if it is text"
        )
    try:
        is_number = not node.style and _EXPONENT.fullmatch(text)
        value = float(text) if is_number else loader.construct_object(node)
    except (ValueError, ArithmeticError) as error:
        kind = "number" if node.tag in _NUMBERS else "date"
        raise _Fault(line, f"{text!r} is not a {kind} ({error}); correct it, or quote it if it is text") from None
    if node.tag in _NUMBERS and _OTHER_BASE.fullmatch(text):
        base = 60 if ":" in text else 2 if "b" in text else 8
        raise _Fault(line, f"{text!r} is {value} in YAML, which reads it in base {base}; write that, or quote it if it is text")
    if node.tag in _NUMBERS and "_" in text:
        raise _Fault(
            line, f"{text!r} has an underscore, which YAML 1.2 takes for text; write {value}, or quote it if it is text"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise _Fault(line, f"{text!r} is not a finite number; give one, or quote it if it is text")
    return value
