"""Loads the pipelines that a file declares.

What always holds: the file runs as a module named after it, with its directory first on the path, so that it can import
modules next to it and executors find its functions under the same names; exceptions are reported with the line of the
file where they were raised. Loading makes no connections.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
import traceback
from pathlib import Path

from tidelog.pipeline.declaration import Pipeline
from tidelog.pipeline.errors import DeclarationError

_MODULE_NAME = re.compile(r"[^0-9a-zA-Z_]")


def load(file: str | Path, name: str | None = None) -> Pipeline:
    """The pipeline that a file declares; if it declares several, `name` selects one."""
    pipelines = load_all(file)
    if name is not None:
        for pipeline in pipelines:
            if pipeline.name == name:
                return pipeline
        names = [pipeline.name for pipeline in pipelines]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it declares {', '.join(names)}"
        raise DeclarationError(f"{file} declares no pipeline {name!r}; {hint}")
    if len(pipelines) > 1:
        names_text = ", ".join(pipeline.name for pipeline in pipelines)
        raise DeclarationError(f"{file} declares {len(pipelines)} pipelines ({names_text}); choose one with --name")
    return pipelines[0]


def load_all(file: str | Path) -> list[Pipeline]:
    """All pipelines that are module-level names in the file, in order."""
    path = Path(file)
    if path.is_dir():
        raise DeclarationError(f"{file} is a directory; give the Python file that declares the pipeline")
    if not path.is_file():
        raise DeclarationError(f"there is no file {file}")
    path = path.resolve()
    module_name = module_name_of(path)
    loaded = sys.modules.get(module_name)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "/").resolve() != path:
        raise DeclarationError(
            f"{file} can't have this name, because a module {module_name!r} is already loaded; rename the file"
        )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{file} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, so that what it defines can be found by name, also on executors.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise DeclarationError(describe_failure(error, path)) from error
    found: dict[str, Pipeline] = {}
    for value in vars(module).values():
        if isinstance(value, Pipeline):
            if found.get(value.name, value) is not value:
                raise DeclarationError(f"{file} declares two pipelines called {value.name!r}")
            found[value.name] = value
    if not found:
        raise DeclarationError(
            f"{file} declares no pipeline; write pipeline = Pipeline(name=..., ...) at its top level"
        )
    return list(found.values())


def module_name_of(path: Path) -> str:
    """The name of the module that a file is loaded as."""
    return _MODULE_NAME.sub("_", path.stem) or "pipeline"


def describe_failure(error: BaseException, path: Path) -> str:
    """What went wrong, with the line of the user's file that caused it."""
    message = f"{type(error).__name__}: {error}" if not isinstance(error, DeclarationError) else str(error)
    if isinstance(error, SyntaxError):
        return f"{path}:{error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_near(frame.filename, path)]
    if not frames:
        return f"{path}: {message}"
    return f"{frames[-1].filename}:{frames[-1].lineno}: {message}"


def _is_near(filename: str, path: Path) -> bool:
    """Whether a line of a traceback belongs to the user: the file itself or a module next to it."""
    other = Path(filename)
    return other == path or (path.parent in other.parents and "site-packages" not in other.parts)
