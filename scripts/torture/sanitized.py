"""The kernels built with AddressSanitizer and UndefinedBehaviorSanitizer, in build/sanitized, for whom it concerns."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g1", "-O1"]
# The extensions of setup.py, compiled with these flags last, and with names for the stacks in a report.
BUILD = """if True:
    import sys, setup
    setup.FLAGS += sys.argv[3:]
    setup.LINK_FLAGS[:] = sys.argv[3:4]
    setup.setup(ext_modules=setup.extensions(), script_args=[
        "-q", "build_ext", "--parallel", "2", "--build-lib", sys.argv[1], "--build-temp", sys.argv[2]])
"""
# Memory that a crafted file asks for must be refused as it is without a sanitizer; NumPy frees as it ends.
ASAN_OPTIONS = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4000:abort_on_error=1"


def build(root: Path) -> tuple[Path | None, str]:
    """The folder to import llsvm from, or why there is none. Compiles only what has changed since."""
    folder = root / "build" / "sanitized"
    library, stamp, wanted = folder / "lib", folder / "stamp", digest(root)
    if not runtime("libasan.so"):
        return None, "gcc has no libasan"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("building the kernels with sanitizers, a few minutes, once ...", file=sys.stderr, flush=True)
        if not stamp.exists():  # nothing, or what an interrupted build has left
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        built = subprocess.run(
            [sys.executable, "-c", BUILD, library, folder / "temp", *FLAGS], cwd=root, capture_output=True, text=True,
        )
        if built.returncode:
            return None, f"the sanitized build failed: {built.stderr[-500:]}"
        stamp.write_text(wanted)
    shutil.copytree(root / "llsvm", library / "llsvm", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("*.so", "__pycache__"))  # fmt: skip
    return library, ""


def digest(root: Path) -> str:
    """Of all that the kernels are made of."""
    files = [root / "setup.py", *sorted((root / "cython_src").iterdir())]
    contents = hashlib.sha256(f"{sys.version} {FLAGS} {BUILD}".encode())
    for file in files:
        contents.update(file.read_bytes())
    return contents.hexdigest()


def runtime(name: str) -> str:
    """The path of a sanitizer's library, or nothing."""
    if not shutil.which("gcc"):
        return ""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) else ""


def environment(library: Path) -> dict[str, str]:
    return {"LD_PRELOAD": runtime("libasan.so"), "ASAN_OPTIONS": ASAN_OPTIONS, "PYTHONMALLOC": "malloc",
            "UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONPATH": str(library)}
