"""YAML files that people write: every fault is a sentence with the file and the line, and none harms the process that reads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.recipes.datasets import load_dataset
from relm.recipes.files.yaml_file import LARGEST
from relm.recipes.recipe import load_recipe
from relm.recipes.section import read_yaml

FAULTS = {
    "a mapping as a key": (b"a: 1\n{name}: y\n", "line 2: a key is a mapping; quote it"),
    "a list as a key": (b"a: 1\n[x]: y\n", "line 2: a key is a list; quote it"),
    "no month 13": (b"a: 1\nb: 2024-13-45\n", "line 2: '2024-13-45' is not a date"),
    "a time out of range": (b"a: 2024-01-01T00:00:00+99:00\n", "line 1: '2024-01-01T00:00:00+99:00' is not a date"),
    "a control character": (b"a: 1\nb: x\x07y\n", "line 2: the character U+0007 is not allowed"),
    "a null byte": (b"a: 1\nb: \x00\n", "line 2: the character U+0000 is not allowed"),
    "an escaped terminal sequence": (b'a: "\\e[31m"\n', "line 1: the character U+001B is not allowed"),
    "a second byte order mark": (b"\xef\xbb\xbf\xef\xbb\xbfa: 1\n", "line 1: the character U+FEFF is not allowed"),
    "a number of 5,000 digits": (b"a: 1\nb: " + b"9" * 5000, "line 2: a number of 5,000 characters"),
    "a number in base 8": (b"a: 1\nseed: 010\n", "line 2: '010' is 8 in YAML, which reads it in base 8; write that, or quote"),
    "a time of day": (b"a: 12:30\n", "line 1: '12:30' is 750 in YAML, which reads it in base 60; write that, or quote it"),
    "bits": (b"a: 0b11\n", "line 1: '0b11' is 3 in YAML, which reads it in base 2; write that, or quote it"),
    "an underscore": (b"a: 1_0\n", "line 1: '1_0' has an underscore, which YAML 1.2 takes for text; write 10, or quote it"),
    "infinity": (b"a: 1\nb: .inf\n", "line 2: '.inf' is not a finite number"),
    "not a number": (b"a: [1, .NaN]\n", "line 1: '.NaN' is not a finite number"),
    "an alias": (b"a: 1\nb: *x\n", "line 2: an alias (*x)"),
    "an anchor": (b"a: 1\nb: &x {c: 1}\n", "line 2: an anchor (&x)"),
    "a billion laughs": (b"a: &a [x]\n" + b"".join(b"a%d: [*a, *a]\n" % n for n in range(9)), "line 1: an anchor (&a)"),
    "a merge key": (b"a: 1\n<<: {b: 2}\n", "line 2: a merge key (<<)"),
    "a tag that constructs": (b"a: 1\nb: !!python/object/apply:os.system [ls]\n", "line 2: a tag (tag:yaml.org,2002:python/"),
    "a tag of one's own": (b"a: !mine 1\n", "line 1: a tag (!mine)"),
    "a very long key": (b"a: 1\n? " + b"k" * 3000 + b"\n: 1\n", "line 2: a key of 3,000 characters"),
    "a key given twice": (b"a: 1\nb: 2\na: 3\n", "line 3: key 'a' was already given in line 1"),
    "one key in two spellings": (b"a: 1\n'a': 3\n", "line 2: key 'a' was already given in line 1"),
    "a directive": (b"%TAG ! tag:x\n---\na: 1\n", "line 1: a directive (%) is not allowed"),
    "a large number as a key": (b"a: 1\n2305843009213693951: 1\n", "line 2: a number of 19 characters as a key"),
    "two documents": (b"a: 1\n---\nb: 1\n", "line 2: not valid YAML"),
    "a tab as indentation": (b"a:\n\tb: 1\n", "line 2: not valid YAML"),
    "a brace that stays open": (b"a: {b: 1\n", "not valid YAML"),
    "an unknown escape": (b'a: "\\q"\n', "line 1: not valid YAML"),
    "a template": (b"a: {{name}}\n", "line 1: a key is a mapping; quote it"),
    "Latin-1": (b"a: 1\nb: caf\xe9\n", "line 2: byte 11 is not UTF-8"),
    "UTF-16": ("a: 1\n".encode("utf-16"), "is UTF-16; save the file as UTF-8"),
    "nothing": (b"", "expected keys with values, such as 'title: My run', found nothing"),
    "a list": (b"- a\n", "expected keys with values, such as 'title: My run', found list"),
    "a nest of 40 lists": (b"a: 1\nb: " + b"[" * 40 + b"]" * 40, "line 2: nested more than 32 deep"),
    "a nest of 40 mappings": (b"".join(b" " * n + b"a:\n" for n in range(40)), "line 33: nested more than 32 deep"),
    "too many bytes": (b"a: 1\n" + b"#" * (LARGEST + 1), "has more than 4 MiB"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_cannot_be_used_is_refused_with_its_path_and_line(tmp_path: Path, name: str) -> None:
    content, words = FAULTS[name]
    path = tmp_path / "test.yaml"
    path.write_bytes(content)
    with pytest.raises(RelmError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_hundred_thousand_brackets_do_not_end_the_interpreter(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from relm.errors import RelmError; from relm.recipes.section import read_yaml\n"
        "for bomb in ('[', '{a: ', '- ', '? ', '[\\n'):\n"
        "    path = Path(sys.argv[1]); path.write_text(bomb * 100_000)\n"
        "    try: read_yaml(path)\n"
        "    except RelmError as error: print(error, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "x.yaml")], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("nested more than 32 deep") == 5, (done.returncode, done.stderr[-300:])


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Path.mkdir, "is a folder; expected a file"),
        (os.mkfifo, "is a named pipe; expected a file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device; expected a file"),
        (lambda path: path.symlink_to("nowhere.yaml"), "is a link to nowhere.yaml, which does not exist"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
    ],
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make, message: str) -> None:
    make(tmp_path / "x.yaml")
    with pytest.raises(RelmError) as caught:
        read_yaml(tmp_path / "x.yaml")
    assert str(caught.value).startswith(f"{tmp_path}/x.yaml")
    assert message in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="root may read every file")
def test_a_file_without_the_right_to_read_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\n")
    path.chmod(0)
    program = "import sys; from pathlib import Path; from relm.recipes.section import read_yaml; read_yaml(Path(sys.argv[1]))"
    # To root every file is open, unless it has given that right away.
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"] if os.geteuid() == 0 else []
    done = subprocess.run([*drop, sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert f"RelmError: {path}: cannot be read: Permission denied" in done.stderr


def test_names_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(RelmError, match=r"cannot be read|no such file"):
            read_yaml(tmp_path / f"{name}.yaml")


def test_a_byte_order_mark_and_the_line_ends_of_windows_are_read_over(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: [x, {c: 1.5}]\r\n")
    assert read_yaml(path) == {"a": 1, "b": ["x", {"c": 1.5}]}


def test_a_recipe_that_extends_what_is_no_recipe_is_refused(tmp_path: Path) -> None:
    for name in ("x" * 300, "a\\0b", "../other", "/etc/passwd"):
        (tmp_path / "test.yaml").write_text(f'extends: "{name}"\n')
        with pytest.raises(RelmError, match=r"test\.yaml"):
            load_recipe(tmp_path / "test.yaml")


def test_a_chain_of_many_recipes_is_refused(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"r{number}.yaml").write_text(f"extends: r{number + 1}\n")
    with pytest.raises(RelmError, match=r"r0\.yaml: extends more than 32 recipes in a row"):
        load_recipe(tmp_path / "r0.yaml")


def test_a_long_value_that_is_wrong_is_shown_in_part(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text(f"title: [1]\nformat: {'x' * 100_000}\n2: a\ntrue: b\n2024-01-01: c\nnull: d\n")
    with pytest.raises(RelmError, match="format: expected") as caught:
        load_dataset(path)
    assert len(str(caught.value)) < 3000


def test_a_text_that_would_become_an_infinite_number_is_refused(tmp_path: Path) -> None:
    recipe = (Path(__file__).parents[2] / "recipes" / "quickstart.yaml").read_text()
    for number in ("inf", "nan", "-Infinity", "1e999"):
        (tmp_path / "test.yaml").write_text(re.sub(r"learning_rate: [^,}\n]+", f"learning_rate: '{number}'", recipe))
        with pytest.raises(RelmError, match=r"optimizer\.learning_rate: .*(expected a number|finite number|greater than 0)"):
            load_recipe(tmp_path / "test.yaml")
