"""The templates of `templates/`, with their filters."""

import functools
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup, escape

from relm.containers.shell_line import plain_line
from relm.formatting import format_bytes, format_duration
from relm.reporting.markdown import escape_cell, escape_prose, escape_target


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "duration": format_duration,
        "bytes": format_bytes,
        "command": lambda record: break_line(plain_line(record["argv"])),
        "line": break_line,
        "path": break_path,
        "short": lambda sha256: sha256[:12] if sha256 else "",
        "yaml": lambda value: yaml.safe_dump(_given(value), sort_keys=False, allow_unicode=True, width=100),
        "cell": escape_cell,
        "prose": escape_prose,
        "target": escape_target,
        "fence": fence_text,
    }
    return environment


def _given(value: Any) -> Any:
    """Return a JSON value without keys that are null."""
    if isinstance(value, dict):
        return {key: _given(inner) for key, inner in value.items() if inner is not None}
    return [_given(inner) for inner in value] if isinstance(value, list) else value


def template(name: str) -> jinja2.Template:
    """Return the template of a page; values are escaped in HTML, and not in Markdown."""
    return _environment().get_template(f"{name}.j2")


def fence_text(text: str) -> str:
    """Return text as a Markdown code block, with a fence that the text does not contain."""
    marks = "```"
    while marks in text:
        marks += "`"
    return f"{marks}text\n{text}\n{marks}"


def break_path(path: str) -> Markup:
    """Return a path that may break after slashes in a narrow column."""
    return Markup("<wbr>").join(escape(part) for part in path.replace("/", "/\n").split("\n"))


def break_line(line: str) -> Markup:
    """Return a shell line that never breaks inside an option; copying it gives the same line."""
    return Markup(" ").join(
        Markup('<span class="option">{}</span>').format(word) if word.startswith("-") else break_path(word)
        for word in line.split(" ")
    )
