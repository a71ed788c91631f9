"""Builds the record kernel as optional extensions; everything else is declared in pyproject.toml.

The kernel is plain Python with a .pxd beside each file. Where there is no C compiler the build goes on without it and
the interpreted twin runs instead, so `pip install` never fails for want of a compiler.
"""

import os

from setuptools import Extension, setup

KERNEL = (
    "kernel",
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
    return modules


setup(ext_modules=kernel_extensions())
