"""Builds cython_src/_*.pyx into llsvm._*; compiler flags and Cython directives live here and nowhere else."""

import os
import sys
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
}
# -ffp-contract=off: no fused multiply-add behind our back, so that a seed and a number of threads give one model on
# every processor.
# -g0: Python's own flags ask for debug information, which is four fifths of a wheel and a fifth of the compile time.
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-g0"]
# GNU's linker drops the symbols nobody needs; Apple's has no such option any more.
LINK_FLAGS = ["-Wl,-s"] if sys.platform.startswith("linux") else []


def extensions():
    sources, headers = sorted(glob("cython_src/_*.pyx")), sorted(glob("cython_src/*.h"))
    if not sources:
        sys.exit("error: no cython_src/_*.pyx here: there is nothing to compile, and llsvm cannot run without\n"
                 "hint: build in the folder of a whole clone or source distribution")  # fmt: skip
    generated = [Path("build", "cython", source).with_suffix(".c") for source in sources]
    this = Path(__file__).stat().st_mtime
    return cythonize(
        [
            Extension(f"llsvm.{Path(source).stem}", [source], include_dirs=["cython_src"],
                      depends=[*headers, "setup.py"], extra_compile_args=FLAGS, extra_link_args=LINK_FLAGS)
            for source in sources
        ],
        compiler_directives=DIRECTIVES,
        build_dir="build/cython",
        nthreads=os.cpu_count(),
        force=any(path.exists() and path.stat().st_mtime < this for path in generated),
    )  # fmt: skip


class BuildExtensions(build_ext):
    """An editable installation builds where `build_ext --inplace` does, and so takes what is up to date there."""

    def finalize_options(self):
        super().finalize_options()
        if self.editable_mode:
            usual = Distribution().get_command_obj("build")
            usual.ensure_finalized()
            self.build_lib, self.build_temp = usual.build_platlib, usual.build_temp


if __name__ == "__main__":  # the processes that cythonize starts import this file
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExtensions},
          options={"build_ext": {"parallel": os.cpu_count()}})  # fmt: skip
