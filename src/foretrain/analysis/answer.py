"""What all answers have in common: a document, files, a line for the console and a view for notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from foretrain.named import named


class Answer(ABC):
    """An answer that travels. How it looks is the business of `report`, known here by its name alone and loaded when
    something is shown."""

    __slots__ = ()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The document: plain values that JSON can hold, in SI units."""

    def _report_data(self) -> dict[str, Any]:
        """What its report holds, for an answer that has no other document."""
        return dict(_report("document_of")(self).data)

    def save(self, path: str | Path) -> None:
        """Write a report in the format the extension names: `.html`, `.json`, `.md`, `.csv`, `.txt`."""
        _report("save")(self, path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {_report('brief')(self)}>"

    def _repr_html_(self) -> str:
        shown: str = _report("notebook")(self)
        return shown


def _report(function: str) -> Any:
    return named(f"foretrain.report:{function}")


class TableAnswer(Answer):
    """An answer of many rows."""

    __slots__ = ()

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Flat rows, one for each result: `pandas.DataFrame(answer.rows())`."""
