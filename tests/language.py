"""Check the language of code, documentation and commits, as far as a program can: `make check` runs it.

Habits of translated English may only become rarer: `tests/data/habits.txt` has their counts. `--update` writes these counts
again unless one rises, also from a file with the marks of a merge conflict. A line is not counted if it ends with
`# plain: REASON`, in Markdown `<!-- plain: REASON -->`; after the quotes of a docstring the remark covers all of it.
"""

import argparse
import ast
import gc
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "src" / "relm"
HEADLESS = {"What", "Of", "How", "Whether", "Where", "Which"}
# Names of classes that sibling models share.
SHARED_CLASSES = {"Attention", "Block", "FeedForward", "SelfAttention"}
COUNTS = CHECKOUT / "tests" / "data" / "habits.txt"
PLACES = ("src", "tests", "docs")
# Good English such as "there is no", "stand-alone" or "tell apart" matches none of these.
HABITS = {
    "beside": r"beside",
    "is no": r"(?<!there )(?:is|are|was|were)\s+no(?=\s+\w)(?!\s+(?:longer|more|less|fewer|later|earlier)\b)",
    "refused": r"(?<!connection )refused",
    "of its own": r"of\s+(?:its|their|our|one's)\s+own",
    "told": r"told(?! apart)",
    "so many": r"so\s+(?:many|much|few|long)(?!\s+(?:as|that))",
    "anew": r"anew",
    "alone": r"(?<![-\w])(?<!let )(?<!left )(?<!leave it )alone",
}
HABIT = re.compile("|".join(rf"(?P<h{number}>\b{pattern}\b)" for number, pattern in enumerate(HABITS.values())), re.IGNORECASE)
LONG = "sentence over 40 words"
EXEMPT = re.compile(r"(?:#|<!--) plain: \w+")
LAST_OLD_COMMIT = "3da4f3719411"
"""The subjects of later commits are checked, except those of merges."""
MOST_CHARACTERS = 72
# The words of the first line look like participles or plurals, and begin an imperative.
NO_VERB = re.compile(
    r"(?!(?:Bring|Embed|Exceed|Feed|Focus|Need|Proceed|Seed|Shed|Speed|Spring|String|Swing)\b)"
    r"(?:(?:WIP|An?|The|No|All|Each|Every|One|Two|Three|It|This|That|There|What|Where|When|How|Our|In|On|With|Without|After)\b"
    r"|\S+[:/.'\u2019]|\S+ (?:is|are|has|have)\b|[a-z0-9]|[A-Z][a-z-]+(?:ed|ing|[^s\W]s)\b)"
)


class Hit(NamedTuple):
    """A habit, or a sentence that is too long, in one of PLACES."""

    place: str
    habit: str
    file: str
    line: int


def find_habits(text: str) -> Iterator[tuple[str, int]]:
    """Yield each habit in a text and its line, counted from 1."""
    for match in HABIT.finditer(text):
        yield list(HABITS)[int(str(match.lastgroup)[1:])], text.count("\n", 0, match.start()) + 1


def find_long_sentences(text: str) -> Iterator[tuple[str, int]]:
    """Yield the line, counted from 1, on which each sentence over 40 words begins, outside of code blocks."""
    text = re.sub(r"^ *```.*?^ *```", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"(\n *\n|\n *(?:[-*|#>]|\d+\.|\w+:)|(?<=[.!?])[)*\"']*\s+(?=[^a-z])| \| )", text)
    line = 1
    for part in parts:
        if len(part.split()) > 40:
            yield LONG, line + len(part[: len(part) - len(part.lstrip())].splitlines())
        line += part.count("\n")


def judge_subject(subject: str) -> str | None:
    """Return what is wrong with the first line of a commit's message."""
    if subject.startswith(("Merge ", 'Revert "', "fixup! ", "squash! ")):
        return None
    if len(subject) > MOST_CHARACTERS:
        return f"{len(subject)} characters, expected at most {MOST_CHARACTERS}"
    if NO_VERB.match(subject):
        return "expected an imperative with a capital letter, such as 'Reject empty shards'"
    return None


def judge_commits() -> Iterator[str]:
    """Yield a fault for each new commit whose subject is too long or no imperative; nothing where the history is absent."""
    log = run_git("log", "--no-merges", "--format=%h %s", f"{LAST_OLD_COMMIT}..HEAD")
    for line in log.splitlines():
        commit, _, subject = line.partition(" ")
        if fault := judge_subject(subject):
            yield f"commit {commit}: {subject!r}: {fault}"


def run_git(*arguments: str) -> str:
    """Return what git prints, or nothing where it fails, as in a copy without a history."""
    return subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True).stdout


def find_all_habits(sources: dict[Path, tuple[str, ast.Module]]) -> list[Hit]:
    """Return the habits in the package's source, the docstrings of tests and programs, and the documentation."""
    hits = []
    for path, (text, tree) in sources.items():
        lines, name, exempt = text.splitlines(), str(path.relative_to(CHECKOUT)), set[int]()
        place = "src" if path.is_relative_to(PACKAGE) else "tests"
        for node in find_docstrings(tree):
            if EXEMPT.search(lines[(node.end_lineno or node.lineno) - 1]):
                exempt.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                continue
            found = [*find_long_sentences(str(node.value)), *(find_habits(str(node.value)) if place == "tests" else ())]
            hits += [Hit(place, habit, name, node.lineno + line - 1) for habit, line in found]
        if place == "src":
            found = [(habit, line) for habit, line in find_habits(text) if line not in exempt]
            hits += [Hit(place, habit, name, line) for habit, line in found if not EXEMPT.search(lines[line - 1])]
    documents = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md"), CHECKOUT / "Makefile"]
    for path in [*documents, CHECKOUT / "Snakefile", *(CHECKOUT / "src").rglob("*.smk")]:
        text, place = path.read_text(encoding="utf-8"), "docs" if path in documents else "src"
        lines = text.splitlines()
        found = [*find_habits(text), *(find_long_sentences(text) if path.suffix == ".md" else ())]
        hits += [Hit(place, h, str(path.relative_to(CHECKOUT)), n) for h, n in found if not EXEMPT.search(lines[n - 1])]
    return hits


def read_counts() -> dict[tuple[str, str], int]:
    """Return the allowed count of each place and habit; of the two sides of a merge conflict, the larger."""
    counts: dict[tuple[str, str], int] = {}
    for habit, *numbers in re.findall(r"^(\S.*?) +(\d+) +(\d+) +(\d+)$", COUNTS.read_text(), re.MULTILINE):
        for place, number in zip(PLACES, map(int, numbers), strict=True):
            counts[place, habit] = max(number, counts.get((place, habit), 0))
    return counts


def judge_habits(hits: list[Hit], allowed: dict[tuple[str, str], int]) -> Iterator[str]:
    """Yield a fault for each count that rose, with the lines that are new since the counts were last written."""
    counts = Counter((hit.place, hit.habit) for hit in hits)
    risen = {key for key, count in counts.items() if count > allowed.get(key, 0)}
    added = list_added_lines() if risen else set()
    for key in sorted(risen):
        found = [hit for hit in hits if (hit.place, hit.habit) == key]
        lines = [f"{hit.file}:{hit.line}" for hit in found if (hit.file, hit.line) in added] or [
            "a line that git does not know"
        ]
        yield f"{', '.join(lines)}: {key[1]!r}: {counts[key]} in {key[0]}, expected at most {allowed.get(key, 0)}"


def list_added_lines() -> set[tuple[str, int]]:
    """Return file and number of each line that is new since the counts were last committed."""
    since = run_git("log", "-1", "--format=%H", "--", str(COUNTS)).strip() or "HEAD"
    added, name = set(), ""
    for line in run_git("diff", "--unified=0", "--no-prefix", since).splitlines():
        if line.startswith("+++ "):
            name = line[4:]
        elif hunk := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line):
            added |= {(name, int(hunk[1]) + number) for number in range(int(hunk[2] or 1))}
    for name in run_git("ls-files", "--others", "--exclude-standard").splitlines():
        added |= {(name, number) for number in range(1, 10_000)}
    return added


def write_counts(hits: list[Hit]) -> None:
    """Write the counts as a table."""
    counts = Counter((hit.place, hit.habit) for hit in hits)
    rows = [("habit", *PLACES), *((habit, *(counts[place, habit] for place in PLACES)) for habit in [*HABITS, LONG])]
    COUNTS.write_text("".join(f"{row[0]:<24}{row[1]:>6}{row[2]:>6}{row[3]:>6}\n" for row in rows))


def faults_of_docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each docstring that opens with a fragment without a subject and a verb."""
    for text in find_docstrings(tree):
        words = str(text.value).split()
        if words and words[0].strip(",:;") in HEADLESS:
            yield (
                text.lineno,
                f"a docstring opens with {' '.join(words[:4])!r}; write a sentence with a verb, or name the data",
            )


def find_docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstring of each module, class and function, and those that follow the fields of a class."""
    for node in walk_statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body if isinstance(node, ast.ClassDef | ast.Module) else node.body[:1]:
                value = statement.value if isinstance(statement, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value


def walk_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and each of its statements; a fifth of the time of `ast.walk`, which visits expressions too."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, block, ())
            nodes += reversed(children) if isinstance(children, list) else ()


def faults_of_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each function that is named after words, and of each call with `*places`."""
    for match in re.finditer(r"^ *def ((?!test_)\w*in_words)\b|(?<=[(, ])\*places(?=[,)])", text, re.MULTILINE):
        fault = f"a function is called {match[1]}; name it by a verb and an object, such as format_duration"
        line = text.count("\n", 0, match.start()) + 1
        yield line, fault if match[1] else "*places hides the arguments of a call; pass them by keyword"


def doubled_classes(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield a fault for each class name that two modules of the package give to different ideas."""
    locations: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name not in SHARED_CLASSES:
                locations[node.name].append(f"{path.relative_to(CHECKOUT)}:{node.lineno}")
    for name, found in sorted(locations.items()):
        if len(found) > 1:
            yield f"{found[0]}: class {name} is also the name of one in {', '.join(found[1:])}; give each idea its own name"


def read_sources() -> dict[Path, tuple[str, ast.Module]]:
    """Return the text and the tree of each Python file in the checkout."""
    files = sorted(
        path for folder in ("src", "tests", "benchmarks", "docs", "envs") for path in (CHECKOUT / folder).rglob("*.py")
    )
    gc.disable()  # the trees have millions of nodes and live to the end
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def judge_code(sources: dict[Path, tuple[str, ast.Module]]) -> Iterator[str]:
    """Yield a line for each fault of docstrings, names and calls."""
    for path, (text, tree) in sources.items():
        for line, fault in sorted([*faults_of_docstrings(tree), *faults_of_names(text)]):
            yield f"{path.relative_to(CHECKOUT)}:{line}: {fault}"
    yield from doubled_classes({path: tree for path, (_, tree) in sources.items() if path.is_relative_to(PACKAGE)})


def main() -> int:
    """Print each fault, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description="Check the language of code, documentation and commits.")
    parser.add_argument("--update", action="store_true", help="write the counts of habits again, unless one rises")
    parser.add_argument("--message", type=Path, metavar="FILE", help="check only the commit message in this file")
    arguments = parser.parse_args()
    if arguments.message:
        subject = arguments.message.read_text(encoding="utf-8").partition("\n")[0]
        lines = [f"commit message: {subject!r}: {fault}"] if (fault := judge_subject(subject)) else []
    else:
        sources = read_sources()
        hits = find_all_habits(sources)
        allowed = read_counts()
        lines = list(judge_habits(hits, allowed))
        if arguments.update and not lines:
            write_counts(hits)
        elif len(hits) < sum(allowed.values()):
            print("habits became rarer; python tests/language.py --update lowers their counts")
        lines += [*judge_code(sources), *judge_commits()]
    print("\n".join(lines) or "the language is plain", file=sys.stderr if lines else sys.stdout)
    return min(len(lines), 1)


if __name__ == "__main__":
    sys.exit(main())
