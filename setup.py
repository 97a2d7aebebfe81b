"""Builds cython_src/_*.pyx into llsvm._*; compiler flags and Cython directives live here and nowhere else."""

import os
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
}
# -ffp-contract=off: no fused multiply-add behind our back, so that a seed gives one model on every machine.
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno"]

HEADERS = sorted(glob("cython_src/*.h"))

extensions = [
    Extension(f"llsvm.{Path(source).stem}", [source], include_dirs=["cython_src"], depends=HEADERS,
              extra_compile_args=FLAGS)
    for source in sorted(glob("cython_src/_*.pyx"))
]
setup(
    ext_modules=cythonize(extensions, compiler_directives=DIRECTIVES, build_dir="build/cython"),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
