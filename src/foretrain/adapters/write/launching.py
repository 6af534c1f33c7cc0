"""Scripts that start one process per device on every node."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from foretrain.adapters.write.exported import one_line
from foretrain.adapters.write.job import Account, ExportJob

SCRIPT = "launch.sh"  # every target has one


def remarked(
    script: str, cannot: Iterable[str], warnings: Iterable[str], assumed: Iterable[str] = ()
) -> str:
    """The script with what it does not say, and what it says unasked, so that the files tell it wherever they go."""
    first, title, rest = script.split("\n", 2)
    lines = [f"#   {one_line(line)}" for line in cannot]
    remarks = [f"# Warning: {one_line(line)}" for line in warnings]
    remarks += [f"# Assumed: {one_line(line)}" for line in assumed]
    remarks += ["# Not expressible in these files:", *lines] if lines else []
    return "\n".join([first, title, *remarks, rest])


def torchrun_script(
    job: ExportJob,
    account: Account,
    command: Iterable[str],
    *,
    before: Iterable[str] = (),
) -> str:
    """`command`: what torchrun runs, one line each, ready for a shell."""
    lines = (
        f'NNODES="${{NNODES:-{job.nodes}}}"',
        f'NPROC_PER_NODE="${{NPROC_PER_NODE:-{max(job.per_node)}}}"',
        'NODE_RANK="${NODE_RANK:-0}"',
        'MASTER_ADDR="${MASTER_ADDR:-localhost}"',
        'MASTER_PORT="${MASTER_PORT:-29500}"',
        *before,
        'exec torchrun --nnodes "$NNODES" --nproc-per-node "$NPROC_PER_NODE" \\',
        '    --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
        *(f"    {line} \\" for line in command),
        '    "$@"',
    )
    note = (
        f"Run this on each of the {job.nodes} nodes, with MASTER_ADDR the first node and "
        f"NODE_RANK 0 to {job.nodes - 1}."
    )
    return shell_script(job, account, lines, note if job.nodes > 1 else "")


def shell_script(job: ExportJob, account: Account, lines: Iterable[str], note: str = "") -> str:
    """These lines, run beside the other files, under what the script is for and a `note` for who runs it."""
    if len(set(job.per_node)) > 1:  # launchers start as many processes on every node
        counts = ", ".join(str(count) for count in job.per_node)
        account.note(
            f"nodes with {counts} devices: the launcher assumes the same number on every node; "
            "set it manually per node"
        )
    head = ("#!/bin/sh", f"# {job.title}", *((f"# {note}",) if note else ()))
    return "\n".join((*head, "set -euf", 'cd "$(dirname "$0")"', *lines)) + "\n"


def quoted(word: object) -> str:
    return shlex.quote(str(word))
