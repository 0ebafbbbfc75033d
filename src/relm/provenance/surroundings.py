"""Where a step ran: machine, code and software, told without naming the host, the user or a secret."""

import contextlib
import getpass
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import relm
from relm.limits import usable_cores
from relm.recipes.identity import work_folder

PACKAGES = (
    "torch",
    "numpy",
    "tokenizers",
    "transformers",
    "safetensors",
    "snakemake",
    "scipy",
    "matplotlib",
    "jinja2",
    "requests",
    "pydantic",
    "torch_xla",
    "poptorch",
)
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
IMAGE_COMMIT = "RELM_IMAGE_COMMIT"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|API_KEY|CREDENTIAL", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"\bhf_[A-Za-z0-9]{16,}")
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_HOME = re.compile(r"^(/(?:home|Users)/)[^/\s'\",;:]+")
_ABSOLUTE_PATH = re.compile(r"(?<![\w.~:/-])/[^\s'\"]+")


# --- machine ---------------------------------------------------------------------------------------------------------------


def processor() -> str:
    """The CPU's model, or its architecture where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Main memory, or the control group's limit where that is lower."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


def host() -> dict[str, Any]:
    """The machine, without its name."""
    return {
        "platform": platform.platform(),
        "processor": processor(),
        "cores_usable": usable_cores(),
        "memory_bytes": memory_bytes(),
    }


def device() -> str:
    """What this process computed on: the CUDA device if torch has used one, else the CPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    return "cpu"


# --- code and software -----------------------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def code() -> dict[str, Any]:
    """Commit of the checkout that this package lies in, and whether `src` or `Snakefile` differ from it, new files included.

    An image says itself from which commit it was built. ``commit`` and ``changed`` are null, with the ``reason``, where there
    is no git or no checkout.
    """
    root = Path(relm.__file__).resolve().parents[2]
    if (built_from := os.environ.get(IMAGE_COMMIT)) and not (root / "pyproject.toml").exists():
        return _code_of_image(built_from)
    try:
        commit, top = _git(root, "rev-parse", "HEAD", "--show-toplevel").splitlines()
        if Path(top).resolve() != root:
            return {"commit": None, "changed": None, "reason": "installed as a package, not run from a checkout"}
        changed = bool(_git(root, "status", "--porcelain", "--", "src", "Snakefile"))
    except FileNotFoundError:
        return {"commit": None, "changed": None, "reason": "git is not installed"}
    except subprocess.SubprocessError as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        return {"commit": None, "changed": None, "reason": without_secrets(f"git: {said[0] if said else 'failed'}")}
    return {"commit": commit, "changed": changed}


def _code_of_image(built_from: str) -> dict[str, Any]:
    """The commit as an image tells it: with `+changes` where the checkout had some."""
    commit, _, changes = built_from.partition("+")
    if not _COMMIT.fullmatch(commit):
        return {"commit": None, "changed": None, "reason": "built into an image that does not know its commit"}
    return {"commit": commit, "changed": bool(changes)}


def software() -> dict[str, str]:
    """Versions of relm, Python and the packages of `PACKAGES` that this process imported."""
    versions = {"relm": _version("relm"), "python": platform.python_version()}
    return versions | {name: _version(name) for name in PACKAGES if name in sys.modules}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))


# --- what may be told ------------------------------------------------------------------------------------------------------


def _short_names() -> list[tuple[str, str]]:
    """Absolute folder -> what it is called in records, the most telling first."""
    folders = [(os.path.abspath(work_folder()), "work"), (os.getcwd(), "."), (os.path.expanduser("~"), "~")]
    return [(folder, name) for folder, name in folders if len(folder) > 1]


def shown(path: Path) -> str:
    """A path as records tell it: `work/...` wherever the work folder is, relative to the current folder, or below `~`."""
    absolute = os.path.abspath(path)
    for folder, name in _short_names():
        if absolute == folder:
            return name
        if absolute.startswith(folder + os.sep):
            return absolute[len(folder) + 1 :] if name == "." else f"{name}{absolute[len(folder) :]}"
    return without_secrets(absolute)


def located(path: str) -> Path:
    """The file that `shown` told as ``path``."""
    first, _, rest = path.partition("/")
    if first == "work":
        return work_folder() / rest
    return Path(path).expanduser()


def without_secrets(text: str) -> str:
    """``text`` with tokens masked and with the current folder, the home and the user's name out of its paths."""
    for name, value in os.environ.items():
        if len(value) >= (4 if name in TOKENS else 8) and (name in TOKENS or _SECRET_NAME.search(name)):
            text = text.replace(value, "***")
    text = _URL_LOGIN.sub("***@", _SECRET_TEXT.sub("***", text))
    for folder, name in _short_names():
        text = re.sub(rf"(?<![\w.~-]){re.escape(folder)}(?=[/\s'\",;:)]|$)", name, text)
    return _ABSOLUTE_PATH.sub(_without_user, text)


def _without_user(match: re.Match[str]) -> str:
    path = _HOME.sub(r"\1USER", match[0])  # in a container the caller's name and home are not known
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        return path
    return "/".join("USER" if part == user else part for part in path.split("/"))


def cleaned(value: Any) -> Any:
    """A JSON value in which every string went through `without_secrets`."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {key: cleaned(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(inner) for inner in value]
    return value
