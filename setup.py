"""Builds the record kernel as optional extensions; everything else is declared in pyproject.toml.

The kernel is plain Python with a .pxd beside each file. Without a C compiler the build carries on, and the same files
run interpreted, so `pip install` never fails for lack of one.
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools import Extension, setup

KERNEL = (
    "kernel",
    "kernel_check",
    "kernel_arrow",
    "kernel_offset_map",
    "kernel_walk",
    "kernel_compact",
    "kernel_small",
    "kernel_consume",
    "kernel_fill",
    "kernel_build",
)


def kernel_extensions() -> list[Extension]:
    if os.environ.get("TIDELOG_PURE_PYTHON"):
        return []
    from Cython.Build import cythonize

    extensions = [
        Extension(
            f"tidelog.records.{module}",
            [f"src/tidelog/records/{module}.py"],
            optional=True,
            extra_compile_args=["-O3", "-g0"],
        )
        for module in KERNEL
    ]
    modules: list[Extension] = cythonize(
        extensions,
        build_dir="build/cython",
        include_path=["src"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": True,
            "wraparound": False,
            "initializedcheck": False,
            "annotation_typing": False,  # the annotations are for type checkers, the C types are in the .pxd files
        },
    )
    for module in modules:
        # cythonize() makes new extensions and doesn't carry this attribute over.
        module.optional = True
    return modules


def readme() -> str:
    """README.md for the package index, which knows neither the other files nor their paths."""
    root = Path(__file__).parent
    repository = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    text = (root / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!https?://|#)", f"]({repository}/blob/main/", text)


setup(
    ext_modules=kernel_extensions(),
    long_description=readme(),
    long_description_content_type="text/markdown",
)
