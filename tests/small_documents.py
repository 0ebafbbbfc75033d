"""Files of documents, as the extraction step writes them."""

import json
from collections.abc import Sequence
from pathlib import Path

from relm.artifact import write_sidecar


def write_texts(path: Path, texts: Sequence[str], title: str = "") -> Path:
    """Write texts as documents with their sidecar, each titled by its number where there is a title; return the path."""
    documents = ({"id": str(n), "title": title and f"{title}{n}", "text": text} for n, text in enumerate(texts))
    lines = (json.dumps(document, ensure_ascii=False) for document in documents)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    write_sidecar(path, documents=len(texts))
    return path
