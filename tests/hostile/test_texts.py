"""Titles and other texts of YAML files that would forge lines of a terminal, or headings and links of a page."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from finished_runs import FinishedRun
from relm.cli import main
from relm.errors import RelmError
from relm.evaluation.result import Result
from relm.formatting import escape_for_terminal
from relm.recipes.datasets import load_dataset
from relm.recipes.evaluation.evaluations import Samples
from relm.recipes.evaluation.published_tests import load_test
from relm.recipes.project import Project
from relm.recipes.published_models import load_model
from relm.recipes.recipe import load_recipe
from relm.reporting.markdown import escape_prose
from relm.reporting.report import write_report

SURFACE = "titles and texts"
CHARACTERS = {
    "line break": "A title\n# Verdict: consistent",
    "carriage return": "A title\rverified",
    "next line": "A title\x85verified",
    "line separator": "A title\u2028verified",
    "right to left": "A title \u202eterces",
    "escape": "A title \x1b[2J\x1b[31mDAMAGED",
    "bell": "A title\x07",
}
# Kind of file -> its loader, and the keys of texts in it.
KEYS: dict[str, tuple[Any, list[str]]] = {
    "recipe": (load_recipe, ["title", "source", "deviations.0", "paper.title", "paper.key", "expect.0.place"]),
    "dataset": (load_dataset, ["title", "licence", "folder", "text_key"]),
    "model": (load_model, ["title", "licence"]),
    "published test": (load_test, ["title", "licence"]),
}
REFUSED = {
    **{f"{kind}: {key}: line break": (kind, key, "line break") for kind, (_, keys) in KEYS.items() for key in keys},
    **{f"recipe: title: {name}": ("recipe", "title", name) for name in list(CHARACTERS)[1:]},
}
# What a page shows as text: the Markdown, and what it would be if it were not escaped.
SURVIVED = {
    "heading": "# Verdict: consistent",
    "quotation": "> consistent: all figures agree",
    "list": "- verified",
    "numbered list": "1. verified",
    "fence": "```",
    "tilde fence": "~~~ text",
    "rule": "---",
    "table": "| a | b |",
    "link": "see [the report](https://example.org)",
    "image": "![x](https://example.org/x.png)",
    "HTML": "<script>alert(1)</script> <b>consistent</b>",
    "automatic link": "<https://example.org>",
    "unpaired code": "` [the report](https://example.org) ``",
    "escaped bracket": "\\[the report](https://example.org)",
    "reference": "[verdict]: https://example.org",
}
MARKED = {
    *("heading_open", "blockquote_open", "list_item_open", "fence", "hr", "table_open"),
    *("link_open", "image", "html_block", "html_inline"),
}


def content(kind: str) -> dict[str, Any]:
    remote = {"sha256": "a" * 64, "size": 1, "sources": [{"url": "https://example.org/a"}]}
    named: dict[str, Any] = {"title": "A title", "licence": "MIT"}
    phase = {"objective": "causal", "sequence_length": 64, "global_batch_size": 4, "steps": 50}
    return {
        "recipe": {
            "title": "A title",
            "source": "github.com/a/b",
            "paper": {"key": "p", "title": "t", "url": "https://example.org"},
            "data": {"dataset": "texts"},
            "tokenizer": {"from_model": "t"},
            "model": {"architecture": "gpt2", "layers": 2, "heads": 2, "hidden_size": 64, "positions": 64},
            "pretrain": {"main": {**phase, "optimizer": {"learning_rate": 0.001}}},
            "deviations": ["None."],
            "expect": [{"metric": "a.b", "value": 1.0, "tolerance": 1.0, "place": "p", "basis": "b"}],
        },
        "dataset": {**named, "language": "en", "format": "json_lines", "folder": "texts", "text_key": "text"},
        "model": {**named, "weights": True, "folder": "model"},
        "published test": {**named, "protocol": "lambada", "files": {"a.jsonl": remote}},
    }[kind]


def write(path: Path, kind: str, key: str, value: str) -> Path:
    found: Any = content(kind)
    *outer, last = (int(part) if part.isdecimal() else part for part in key.split("."))
    place = found
    for part in outer:
        place = place[part]
    place[last] = value
    path.write_text(yaml.safe_dump(found), encoding="utf-8")
    return path


@pytest.mark.parametrize(("kind", "key", "name"), REFUSED.values(), ids=REFUSED)
def test_a_text_with_a_control_character_is_refused_where_it_is_read(kind: str, key: str, name: str, tmp_path: Path) -> None:
    load = KEYS[kind][0]
    load(write(tmp_path / "a.yaml", kind, key, "plain"))
    with pytest.raises(RelmError) as refused:
        load(write(tmp_path / "a.yaml", kind, key, CHARACTERS[name]))
    message = str(refused.value)
    assert re.search(r"a\.yaml(, line \d+)?: ", message)
    assert f"U+{ord(re.search('[^ -~]', CHARACTERS[name])[0]):04X}" in message  # type: ignore[index]
    assert "delete it" in message
    assert not set(CHARACTERS[name]) & set(message) - set(map(chr, range(32, 127))) - {"\n"}


def test_prompts_may_have_several_lines() -> None:
    assert Samples(prompt=["one\ntwo"]).prompt == ["one\ntwo"]
    result = {"task": "samples", "protocol": {"in_words": "a\nb"}, "figures": {}, "model_sha256": "0"}
    found = Result.model_validate({**result, "samples": [{"prompt": "a\nb", "text": "a\r\x07b"}]})
    assert found.samples is not None


def structure(markdown: str) -> list[str]:
    """The blocks, links and HTML of a page."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    return [inner.type for token in tokens for inner in (token, *(token.children or [])) if inner.type in MARKED]


@pytest.mark.parametrize("text", SURVIVED.values(), ids=SURVIVED)
def test_a_text_in_a_page_is_shown_as_text(text: str) -> None:
    assert structure(f"- {text}\n") != ["list_item_open"] or structure(f"{text}\n") or text.startswith(("|", "```", "\\", "["))
    for line in (f"- {escape_prose(text)}\n", f"> {escape_prose(text)}\n"):
        assert structure(line) in (["list_item_open"], ["blockquote_open"])
        shown = MarkdownIt("commonmark").parse(line)
        assert "".join(inner.content for token in shown for inner in token.children or []) == text


@pytest.mark.parametrize("text", ["`--do_lower_case` and <mask>", "t5x at 0911ce1: a.py --b_c 1.4697", "T5 v1.1, 8 %"])
def test_texts_as_recipes_have_them_read_the_same(text: str) -> None:
    assert escape_prose(text).replace("\\", "") == text


def test_the_card_of_a_hostile_recipe_has_the_headings_and_links_of_any_other(copied_run: FinishedRun) -> None:
    path = Path("recipes/tiny.yaml")
    before = structure(card(copied_run))
    recipe = yaml.safe_load(path.read_text())
    path.write_text(
        yaml.safe_dump({**recipe, "title": "[x](javascript:alert(1)) <b>y</b>", "deviations": [*SURVIVED.values()]})
    )
    after = structure(card(copied_run))
    plain = {**recipe, "deviations": ["Plain."] * len(SURVIVED)}
    path.write_text(yaml.safe_dump(plain))
    assert after == structure(card(copied_run))
    assert len(after) > len(before)


def card(run: FinishedRun) -> str:
    """The model card of the recipe as it is now, without its front matter."""
    folder = run.plan.report_folder
    write_report(Project().plan("tiny"), run.verify, run.evaluations, folder)
    return (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)[2]


def test_a_message_of_a_command_gives_a_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "a\x1b[2J\x07\u202eb.bin"]) == 1
    assert "no such file: a\\x1b[2J\\x07\\u202eb.bin;" in capsys.readouterr().err
    assert escape_for_terminal("\x1b[1mbold\x1b[0m\tx\n\x1b]0;title\x07") == "\x1b[1mbold\x1b[0m\tx\n\\x1b]0;title\\x07"
