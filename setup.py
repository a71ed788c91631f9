"""Builds the record kernel as an optional extension; everything else is declared in pyproject.toml.

The kernel is plain Python with a .pxd beside it. Where there is no C compiler the build goes on without it and the
interpreted twin runs instead, so `pip install` never fails for want of a compiler.
"""

import os

from setuptools import Extension, setup

KERNEL = "src/tidelog/records/kernel.py"


def kernel_extensions() -> list[Extension]:
    if os.environ.get("TIDELOG_PURE_PYTHON") or not os.path.exists(KERNEL):
        return []
    from Cython.Build import cythonize

    extension = Extension("tidelog.records.kernel", [KERNEL], optional=True, extra_compile_args=["-O3"])
    modules: list[Extension] = cythonize(
        [extension],
        build_dir="build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": True,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "annotation_typing": False,  # the annotations are for type checkers, the C types are in the .pxd
        },
    )
    return modules


setup(ext_modules=kernel_extensions())
