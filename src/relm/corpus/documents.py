"""Documents: the JSON lines between extraction and tokenisation, and which of them are held out of training.

One object a line, UTF-8, ``{"id":...,"title":...,"text":...}``, in the order of the source.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self
