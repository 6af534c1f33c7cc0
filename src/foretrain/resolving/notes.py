"""What is noted while a request is resolved."""

from __future__ import annotations

from foretrain.errors import InputError, RuntimePresetError
from foretrain.resolving.request import Request


class Notes:
    """Defaults that were taken, and what a reader should know besides."""

    def __init__(self, request: Request | None = None) -> None:
        self.strict = request is None or request.strict
        self.assumptions = [] if request is None else list(request.assumptions)
        self.warnings = [] if request is None else list(request.warnings)
        self.unknown = 0 if request is None else request.unknown

    def assume(self, what: str, why: str, word: str) -> None:
        """`word` is what the user would write to have it otherwise."""
        self.assumptions.append(f"{what}: {why} ({word})")

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def unknown_switch(self, text: str, fault: InputError) -> None:
        """A switch that nothing here answers to: a mistake of the user, or something of a run that we do not know."""
        if self.strict:
            raise fault
        self.unknown += 1
        self.warnings.append(text)

    def contradiction(self, one: str, other: str, used: str) -> None:
        """Two switches that cannot both be: a mistake of the user, or a run of which one has to be believed."""
        told = f"{one} and {other} contradict each other"
        if self.strict:
            raise RuntimePresetError(f"{told}. Specify only one of them.")
        self.warnings.append(f"{told}; {used} is used.")
