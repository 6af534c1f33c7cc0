"""Cases: training runs in one JSON format, as `predict --cases` and `validate` read them.

Null means "not known": it is filled in as for any other request and named in the answer's `assumptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from foretrain.cases.translation import request_from_case
from foretrain.errors import ForetrainError
from foretrain.resolving import resolve
from foretrain.scenario import Scenario
from foretrain.simulate import answer

__all__ = ["predict_case", "predict_cases", "request_from_case", "scenario_from_case"]


def scenario_from_case(case: Mapping[str, Any]) -> Scenario:
    """The scenario that a case describes."""
    return resolve(request_from_case(case))


def predict_cases(
    cases: Iterable[Mapping[str, Any]], progress: Callable[[int], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Predict many training configurations in the case format (`foretrain schema case`).

    Args:
        cases: one mapping per case, such as lines of a JSON Lines file.
        progress: called with the number done.

    Yields:
        One prediction document per case, in order; an invalid case yields `{"id", "error"}` and does not stop the rest.

    >>> from foretrain import predict_cases
    >>> [document["error"]["kind"] for document in predict_cases([{"id": "empty"}])]
    ['CaseError']
    """
    for number, case in enumerate(cases, start=1):
        yield predict_case(case)
        if progress is not None:
            progress(number)


def predict_case(case: Mapping[str, Any]) -> dict[str, Any]:
    """The prediction document of one case, or its error document."""
    name = str(case.get("id", "")) if isinstance(case, Mapping) else ""
    try:
        return answer(scenario_from_case(case)).to_dict(in_full=False)
    except ForetrainError as error:
        return {"id": name, "error": {"kind": type(error).__name__, "message": str(error)}}
    except Exception as error:  # one broken case must not cost the others their answers
        message = f"internal error: {type(error).__name__}: {error}"
        return {"id": name, "error": {"kind": "Bug", "message": message}}
