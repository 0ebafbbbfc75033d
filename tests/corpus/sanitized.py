"""Run compiled code of relm with the compiler's checks of addresses and of undefined behaviour."""

import subprocess
import sys
import sysconfig
from pathlib import Path


def run_sanitized(source: Path, code: str, folder: Path, *arguments: str) -> None:
    """Compile a module, and run Python code that imports it and prints "sound" at its end.

    Args:
        folder: where the compiled module goes.
        arguments: of the Python code.
    """
    target = folder / f"relm_{source.stem}.abi3.so"
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]
    command = ["cc", "-Wall", "-Wextra", "-Werror", *sanitizers, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([*command, str(source), "-o", str(target)], check=True)
    library = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(folder), "PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "sound\n", done.stderr[-3000:]
