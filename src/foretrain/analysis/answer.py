"""What all answers have in common: a document, files, a line for the console and a view for notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


class Answer(ABC):
    """An answer that travels. How it looks is the business of `report`, which is loaded when something is shown: the
    one place where a lower layer calls an upper one."""

    __slots__ = ()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The document: plain values that JSON can hold, in SI units."""

    def _told(self) -> dict[str, Any]:
        """What its report holds, for an answer that has no other document."""
        from foretrain.report import document_of

        return dict(document_of(self).data)

    def save(self, path: str | Path) -> None:
        """Write a report in the format the extension names: `.html`, `.json`, `.md`, `.csv`, `.txt`."""
        from foretrain.report import save

        save(self, path)

    def __repr__(self) -> str:
        from foretrain.report import brief

        return f"<{type(self).__name__}: {brief(self)}>"

    def _repr_html_(self) -> str:
        from foretrain.report import notebook

        return notebook(self)


class Table(Answer):
    """An answer of many rows."""

    __slots__ = ()

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Flat rows, one for each result: `pandas.DataFrame(answer.rows())`."""
