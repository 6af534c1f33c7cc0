"""Critical path: the chain of tasks that set the step time, walked back from the last one to end."""

from __future__ import annotations

from foretrain.analysis.prediction import PathStep, Timeline
from foretrain.compile.execution import KIND_NAMES, PHASE_NAMES


def critical_path(timeline: Timeline, limit: int = 4000) -> tuple[PathStep, ...]:
    """Steps in time order, from 0 to the end of the step; neighbours doing the same thing on the same stage are
    told as one, and of very long paths the middle is summed up."""
    if not len(timeline):
        return ()
    told: list[tuple[float, float, int, str]] = []  # fields of steps
    starts, ends = timeline.start.tolist(), timeline.end.tolist()
    stages, causes = timeline.stage.tolist(), timeline.waited_for.tolist()
    names = _Names(timeline)
    task = int(timeline.end.argmax())
    while task >= 0:
        start, end = starts[task], ends[task]
        if end > start:
            stage, what = stages[task], names.of(task)
            if told and told[-1][2] == stage and told[-1][3] == what:
                told[-1] = (start, told[-1][1], stage, what)
            else:
                told.append((start, end, stage, what))
        task = causes[task]
    told.reverse()
    if len(told) > limit:
        head, middle, tail = told[: limit // 2], told[limit // 2 : -limit // 2], told[-limit // 2 :]
        what = f"{len(middle):,} steps in between"
        told = [*head, (middle[0][0], middle[-1][1], middle[0][2], what), *tail]
    return tuple(PathStep(*fields) for fields in told)


class _Names:
    """What each task is called on the path."""

    def __init__(self, timeline: Timeline) -> None:
        self.kinds, self.phases = timeline.kind.tolist(), timeline.phase.tolist()
        self.label, self.labels = timeline.label.tolist(), timeline.labels

    def of(self, task: int) -> str:
        kind = KIND_NAMES[self.kinds[task]]
        if kind == "chain":
            return PHASE_NAMES[self.phases[task]]
        return "host launches" if kind == "launch" else self.labels[self.label[task]]
