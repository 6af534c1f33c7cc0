"""Predicted steps under changed calibration files: what `fit_runs.py` and `leave_one_out.py` try values with.

A value is changed in the text of its file, and only for the processes that try it: whatever the package reads
through `Path.read_bytes` and `Path.read_text` shows the change, and what it had remembered of the files is
forgotten. So any YAML or JSON file of the package can be tried, without a word about it in the package. Every
process keeps the compiled graphs of its cases, since costs change under a trial and programs do not (but for what a
runtime fuses by the clock, which stays as it was compiled first).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import yaml
from case_steps import asked, step_of

import foretrain
from foretrain.compile import ExecutionGraph
from foretrain.errors import ForetrainError
from foretrain.simulate import compile_scenario

PACKAGE = Path(foretrain.__file__).parent
Change = tuple[str, str, float]  # file below the package, dotted path, value

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# --- values in files -----------------------------------------------------------------------------


def _node(text: str, path: str) -> yaml.Node:
    node: Any = yaml.compose(text, Loader=_LOADER)
    for key in path.split("."):
        if isinstance(node, yaml.MappingNode):
            found = {str(name.value): value for name, value in node.value}
            if key not in found:
                raise SystemExit(f"{path}: no {key!r}; there are {', '.join(found)}.")
            node = found[key]
        elif isinstance(node, yaml.SequenceNode):
            node = node.value[int(key)]
        else:
            raise SystemExit(f"{path}: {key!r} lies below a plain value.")
    assert isinstance(node, yaml.Node)
    return node


def value_at(text: str, path: str) -> float:
    return float(_node(text, path).value)


def edited(text: str, path: str, value: float) -> str:
    """The text with one number replaced, all else (comments, order, spacing) as it was."""
    node = _node(text, path)
    if not isinstance(node, yaml.ScalarNode):
        raise SystemExit(f"{path} is not a number.")
    return text[: node.start_mark.index] + written(value) + text[node.end_mark.index :]


def fitted(text: str, path: str, value: float, groups: Sequence[str]) -> str:
    """The text of `runtime/fitted.yaml` with a value fitted on these groups, whatever it rested on before."""
    node = _node(text, path.removesuffix(".value"))
    row = f"{{value: {written(value)}, fitted_on: [{', '.join(groups)}]}}"
    return text[: node.start_mark.index] + row + text[node.end_mark.index :]


def written(value: float) -> str:
    """Three digits, in a form that YAML 1.1 takes for a number."""
    short = f"{value:.3g}"
    if "e" not in short:
        return short
    mantissa, _, exponent = short.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"


# --- one process -----------------------------------------------------------------------------------


class Overlay:
    """Files as they would read with other values; installed once per process."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        read_bytes, read_text, texts = Path.read_bytes, Path.read_text, self.texts

        def bytes_of(path: Path) -> bytes:
            changed = texts.get(str(path))
            return read_bytes(path) if changed is None else changed.encode()

        def text_of(path: Path, *how: Any, **named: Any) -> str:
            changed = texts.get(str(path))
            return read_text(path, *how, **named) if changed is None else changed

        self.original = read_text
        Path.read_bytes = bytes_of  # type: ignore[method-assign, assignment]
        Path.read_text = text_of  # type: ignore[method-assign, assignment]

    def set(self, changes: Iterable[Change]) -> None:
        self.texts.clear()
        for file, path, value in changes:
            name = str(PACKAGE / file)
            text = self.texts.get(name) or self.original(PACKAGE / file, encoding="utf-8")
            self.texts[name] = edited(text, path, value)
        forget()


def forget() -> None:
    """Empty every cache of the package."""
    for name, module in list(sys.modules.items()):
        if name == "foretrain" or name.startswith("foretrain."):
            for thing in list(vars(module).values()):
                clear = getattr(thing, "cache_clear", None)
                if callable(clear):
                    clear()


def _work(cases: Sequence[Mapping[str, Any]], pipe: Connection) -> None:
    """Answer (changes, wanted rows) with log errors, None for what could not be predicted, until told to stop."""
    os.environ["FORETRAIN_CACHE"] = ""
    overlay, graphs, last = Overlay(), dict[int, ExecutionGraph](), None
    while (message := pipe.recv()) is not None:
        changes, wanted = message
        if changes != last:
            overlay.set(changes)
            last = changes
        pipe.send([_log_error(cases, row, graphs) for row in wanted])


def _log_error(
    cases: Sequence[Mapping[str, Any]], row: int, graphs: dict[int, ExecutionGraph]
) -> float | None:
    try:
        if row not in graphs:
            graphs[row] = compile_scenario(asked(cases[row]))
            gc.freeze()
        return step_of(cases[row], graph=graphs[row]).log_error
    except ForetrainError:
        return None


# --- all processes ---------------------------------------------------------------------------------


class Trials:
    """Cases shared out over processes; `errors` predicts some of them under changed values."""

    def __init__(self, cases: Sequence[Mapping[str, Any]], jobs: int = 2) -> None:
        self.cases = cases
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Any] = []
        self._processes = []
        for number in range(jobs):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(cases[number::jobs], there), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)
        self._known: dict[tuple[tuple[Change, ...], int], float | None] = {}

    def errors(self, changes: Sequence[Change], rows: Sequence[int]) -> dict[int, float]:
        """Log errors by row; rows that cannot be predicted are left out."""
        key, jobs = tuple(sorted(changes)), len(self._pipes)
        open_ = [row for row in rows if (key, row) not in self._known]
        shares = [[row for row in open_ if row % jobs == number] for number in range(jobs)]
        for pipe, share in zip(self._pipes, shares, strict=True):
            pipe.send((key, [row // jobs for row in share]))
        for pipe, share in zip(self._pipes, shares, strict=True):
            for row, error in zip(share, pipe.recv(), strict=True):
                self._known[key, row] = error
        found = {row: self._known[key, row] for row in rows}
        return {row: error for row, error in found.items() if error is not None}

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join(timeout=10)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
