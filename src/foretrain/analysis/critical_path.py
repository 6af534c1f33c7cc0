"""Critical path: the chain of tasks that set the step time, walked back from the last one to end."""

from __future__ import annotations

from itertools import groupby

from foretrain.analysis.prediction import PathStep, Timeline
from foretrain.compile.execution import KIND_NAMES, PHASE_NAMES


def critical_path(timeline: Timeline, limit: int = 4000) -> tuple[PathStep, ...]:
    """Steps in time order, from 0 to the end of the step; neighbours doing the same thing on the same stage are
    told as one, and of very long paths the middle is summed up."""
    if not len(timeline):
        return ()
    path: list[PathStep] = []
    task = int(timeline.end.argmax())
    while task >= 0:
        start, end = float(timeline.start[task]), float(timeline.end[task])
        if end > start:
            path.append(PathStep(start, end, int(timeline.stage[task]), _what(timeline, task)))
        task = int(timeline.waited_for[task])
    path.reverse()
    told = []
    for (stage, what), steps in groupby(path, key=lambda s: (s.stage, s.what)):
        run = list(steps)
        told.append(PathStep(run[0].start, run[-1].end, stage, what))
    if len(told) > limit:
        head, middle, tail = told[: limit // 2], told[limit // 2 : -limit // 2], told[-limit // 2 :]
        what = f"{len(middle):,} steps in between"
        told = [*head, PathStep(middle[0].start, middle[-1].end, middle[0].stage, what), *tail]
    return tuple(told)


def _what(timeline: Timeline, task: int) -> str:
    kind = KIND_NAMES[int(timeline.kind[task])]
    if kind == "chain":
        return PHASE_NAMES[int(timeline.phase[task])]
    if kind == "launch":
        return "host launches"
    return timeline.labels[int(timeline.label[task])]
