"""Compare: the difference of two predictions, attributed to the causes that moved the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from foretrain.analysis.answer import TableAnswer
from foretrain.analysis.document import expect_prediction
from foretrain.analysis.prediction import STALLS, Prediction
from foretrain.units import rounded_seconds, show_count

WORK = ("model", "parameters", "global_batch", "seq_len", "precision", "optimizer")
"""What a step has to do; the rest of a question is how it is done."""
_ASKED = (*WORK, "trained_parameters", "cluster", "devices", "plan", "micro_batch", "runtime",
          "headroom", "stragglers", "calibration", "calibration_sha256", "usd_per_device_hour", "pue",
          "mtbf_hours", "restart_seconds", "checkpoint_rate")  # fmt: skip
_TABLES = {"runtime_options": "default", "data": None}
"""Parts of a question that have parts themselves, and what one that is not listed is."""
_TITLES = {
    "global_batch": "batch", "seq_len": "sequence", "micro_batch": "micro-batch",
    "trained_parameters": "trained parameters", "calibration_sha256": "calibration hash",
    "usd_per_device_hour": "USD per device-hour", "mtbf_hours": "MTBF of a node (h)",
    "restart_seconds": "restart (s)", "checkpoint_rate": "checkpoint rate (bytes/s)",
}  # fmt: skip
_SAME = 5e-4  # steps that differ by less take as long
_MOST_NAMED = 3
_WORTH_NAMING = 0.1  # of what the causes of one direction come to


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of both. `kind`: a `cause` of the time, or a `figure`; `unit`: s, bytes, USD, 1/s or a share."""

    kind: str
    name: str
    unit: str
    a: float | None
    b: float | None

    @property
    def delta(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"delta": self.delta}


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(TableAnswer):
    """Explain why B is slower or faster than A. `causes` add up to the difference of the times, largest first.

    `per` is what the times are of: a `step` where both do the same work, else `million tokens` or
    `thousand samples`; None where the two have nothing in common, and then there are no causes.
    """

    names: tuple[str, str]
    per: str | None
    causes: tuple[Difference, ...]
    figures: tuple[Difference, ...]
    changed: Mapping[str, tuple[Any, Any]]  # what was asked differently, by name
    remarks: tuple[str, ...]
    summary: str

    def rows(self) -> list[dict[str, Any]]:
        return [row.to_dict() for row in (*self.figures, *self.causes)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "summary": self.summary,
            "remarks": list(self.remarks),
            "a": self.names[0],
            "b": self.names[1],
            "per": self.per,
            "changed": {name: list(pair) for name, pair in self.changed.items()},
            "rows": self.rows(),
        }


def compare(
    a: Prediction | Mapping[str, Any],
    b: Prediction | Mapping[str, Any],
    *,
    names: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Explain why B is slower or faster than A.

    Args:
        a: a prediction, or its document (`Prediction.to_dict()`, or the content of a `.json` report).
        b: the prediction to compare it with.
        names: labels for the two, such as their file names.

    Returns:
        Times of both in seconds, per step if model, batch, sequence, precision and optimizer are the same, otherwise
        per million tokens or thousand samples; memory in bytes, cost in USD.

    >>> from foretrain import compare, predict
    >>> asked = dict(on="1 x dgx-h100", batch=64, seq=2048, runtime="megatron")
    >>> a, b = (predict("gpt2", plan=plan, **asked) for plan in ("dp8", "tp4 dp2"))
    >>> comparison = compare(a, b)
    >>> comparison.per, comparison.changed["plan"]
    ('step', ('dp8', 'tp4 dp2 sp'))
    >>> abs(sum(row.delta for row in comparison.causes) - (b.step_seconds - a.step_seconds)) < 1e-9
    True
    """
    pair = _document(a, "A"), _document(b, "B")
    asked = [document.get("question") or {} for document in pair]
    changed = dict(_changed(asked))
    lengths = _lengths(pair)
    if lengths is not None:
        changed["job"] = lengths
    work = [_TITLES.get(key, key) for key in WORK if _TITLES.get(key, key) in changed]
    per, amounts = _common(pair, work)
    remarks = (
        *_remarks(asked, changed, work, per),
        *_job_remarks(lengths),
        *_unnamed(pair, changed),
    )
    causes = () if amounts is None else tuple(_causes(pair, amounts))
    figures = tuple(_figures(pair, per, amounts))
    said = " ".join((*remarks, *_sentences(figures[0], causes, per, pair)))
    return Comparison(names, per, causes, figures, changed, remarks, said)


def _document(value: Prediction | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return value.to_dict() if isinstance(value, Prediction) else expect_prediction(value, name)


def _changed(asked: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """What was asked differently, by name."""
    for key in _ASKED:
        a, b = (question.get(key) for question in asked)
        if a != b:
            yield _TITLES.get(key, key), (a, b)
    for key, usual in _TABLES.items():
        tables = [question.get(key) or {} for question in asked]
        for name in sorted({*tables[0], *tables[1]}):
            a, b = (table.get(name, usual) for table in tables)
            if a != b:
                yield f"{key.split('_')[0]} {name}", (a, b)


def _unnamed(
    pair: Sequence[Mapping[str, Any]], changed: Mapping[str, tuple[Any, Any]]
) -> Iterator[str]:
    """Inputs that differ in what no document lists: files of one name, and rates that a what-if changed."""
    hashes = {(document.get("provenance") or {}).get("inputs_sha256") for document in pair}
    if len(hashes - {None}) == 2 and not changed:
        yield (
            "The inputs differ in something that the documents do not list, such as the content of "
            "a cluster, model or plan file."
        )


def _common(
    pair: Sequence[Mapping[str, Any]], work: Sequence[str]
) -> tuple[str | None, tuple[float, float] | None]:
    """What the times are of, and how many of it a step of each has."""
    if not work:
        return "step", (1.0, 1.0)
    for per, rate, many in (
        ("million tokens", "tokens_per_second", 1e6),
        ("thousand samples", "samples_per_second", 1e3),
    ):
        known = [bool(document.get(rate)) for document in pair]
        if all(known):
            a, b = (float(d[rate]) * float(d["step_seconds"]) / many for d in pair)
            return per, (a, b)
        if any(known) and "model" in work:
            break  # one learns from tokens, the other does not
    return None, None


def _remarks(
    asked: Sequence[Mapping[str, Any]],
    changed: Mapping[str, tuple[Any, Any]],
    work: Sequence[str],
    per: str | None,
) -> Iterator[str]:
    if not work:
        return
    a, b = (question.get("model") for question in asked)
    if per is None:
        yield f"Not comparable: {a} and {b} have no common unit of work, such as tokens."
        return
    shown = [name for name in work if name != "parameters" or "model" not in work]
    changes = ", ".join(f"{name} {_said(changed[name])}" for name in shown)
    yield f"The work differs ({changes}), so times are per {per}."
    if "model" in work or "parameters" in work:
        unit = per.rpartition(" ")[2].removesuffix("s")
        yield f"A {unit} is not the same amount of work for both models."


def _lengths(pair: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """How long the jobs are, in the words of both, where they train on different amounts."""
    jobs = [document.get("job") or {} for document in pair]
    if not all(jobs):
        return None
    unit = "tokens" if all(job.get("tokens") for job in jobs) else "samples"
    a, b = (float(job[unit]) for job in jobs)
    if abs(b - a) <= _SAME * max(a, b):
        return None
    said = tuple(str(job["asked"]) for job in jobs)
    if said[0] == said[1]:  # as many steps or epochs, but of other batches or datasets
        return f"{show_count(a)} {unit}", f"{show_count(b)} {unit}"
    return said[0], said[1]


def _job_remarks(lengths: tuple[str, str] | None) -> Iterator[str]:
    if lengths is not None:
        yield (
            f"The jobs differ in length ({_said(lengths)}): job duration and job cost are totals "
            "of different amounts of training."
        )


def _said(pair: tuple[Any, Any]) -> str:
    a, b = (f"{value:,}" if isinstance(value, int) else str(value) for value in pair)
    return f"{a} and {b}"


def _causes(
    pair: Sequence[Mapping[str, Any]], amounts: tuple[float, float]
) -> Iterator[Difference]:
    rows = []
    for name in STALLS:
        a, b = (
            float(d["stalls"].get(name, 0.0)) / many for d, many in zip(pair, amounts, strict=True)
        )
        if a or b:
            rows.append(Difference("cause", name, "s", a, b))
    yield from sorted(rows, key=lambda row: -abs(row.delta or 0.0))


def _figures(
    pair: Sequence[Mapping[str, Any]], per: str | None, amounts: tuple[float, float] | None
) -> Iterator[Difference]:
    """Time first; what only one of them has is shown too."""
    many = amounts or (1.0, 1.0)
    memory = [document.get("memory") or {} for document in pair]
    cost = [document.get("cost") or {} for document in pair]
    prices = [row.get("usd_per_step") for row in cost]
    usd = [None if price is None else price / n for price, n in zip(prices, many, strict=True)]
    times = [float(d["step_seconds"]) / n for d, n in zip(pair, many, strict=True)]
    rows: list[tuple[str, str, Sequence[Any]]] = [
        (f"time per {per or 'step'}", "s", times),
        ("tokens per second", "1/s", [d.get("tokens_per_second") for d in pair]),
        ("samples per second", "1/s", [d.get("samples_per_second") for d in pair]),
        ("MFU", "share", [d.get("mfu") for d in pair]),
        ("peak memory", "bytes", [row.get("peak_bytes") for row in memory]),
        ("usable memory", "bytes", [row.get("usable_bytes") for row in memory]),
        (f"cost per {per or 'step'}", "USD", usd),
        ("cost per hour", "USD", [row.get("usd_per_hour") for row in cost]),
        ("job duration in days", "d", [(d.get("job") or {}).get("expected_days") for d in pair]),
        ("job cost", "USD", [(d.get("job") or {}).get("usd") for d in pair]),
    ]
    for name, unit, values in rows:
        a, b = (None if value is None else float(value) for value in values)
        if a is not None or b is not None:
            yield Difference("figure", name, unit, a, b)


def _sentences(
    time: Difference,
    causes: Sequence[Difference],
    per: str | None,
    pair: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    if per is not None:
        yield _verdict(time, causes, per)
    fits = [document.get("fits") for document in pair]
    if False in fits:
        no = "Neither fits" if fits == [False, False] else f"{'AB'[fits.index(False)]} does not fit"
        yield f"{no} in memory."


def _verdict(time: Difference, causes: Sequence[Difference], per: str) -> str:
    a, b = time.a or 0.0, time.b or 0.0
    if abs(b - a) <= _SAME * a:
        return f"Both take {rounded_seconds(a)} per {per}."
    digits = 2 if abs(b / a - 1.0) >= 0.01 else 3
    ratio = f"{b / a:.{digits}f}× as long" if b > a else f"{a / b:.{digits}f}× as fast"
    text = f"B takes {rounded_seconds(b)} per {per} instead of {rounded_seconds(a)} ({ratio})"
    sign = 1.0 if b > a else -1.0
    with_it = _moves([row for row in causes if (row.delta or 0.0) * sign > 0])
    against = _moves([row for row in causes if (row.delta or 0.0) * sign < -_SAME * a])
    text += f": {with_it}" if with_it else ""
    return f"{text}, but {against}." if against else f"{text}."


def _moves(rows: Sequence[Difference]) -> str:
    """`bubble shrank by 9 s and host by 1 s`: those that matter, all of one sign."""
    whole = sum(abs(row.delta or 0.0) for row in rows)
    largest = [r for r in rows if abs(r.delta or 0.0) >= _WORTH_NAMING * whole][:_MOST_NAMED]
    if not largest:
        return ""
    moved = "grew" if (largest[0].delta or 0.0) > 0 else "shrank"
    parts = [f"{row.name} by {rounded_seconds(abs(row.delta or 0.0))}" for row in largest]
    parts[0] = parts[0].replace(" by ", f" {moved} by ", 1)
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
