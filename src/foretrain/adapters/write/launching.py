"""Scripts that start one process per device on every node."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.text import one_line

SCRIPT = "launch.sh"  # every target has one


def remarked(script: str, cannot: Iterable[str], warnings: Iterable[str]) -> str:
    """The script with what it does not say, so that the files tell it wherever they go."""
    first, title, rest = script.split("\n", 2)
    lines = [f"#   {one_line(line)}" for line in cannot]
    remarks = [f"# Warning: {one_line(line)}" for line in warnings]
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
    lines = [
        "#!/bin/sh",
        f"# {job.title}",
        *_nodes_note(job, account),
        "set -euf",
        'cd "$(dirname "$0")"',
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
    ]
    return "\n".join(lines) + "\n"


def uneven_nodes(job: ExportJob, account: Account) -> None:
    """Launchers start as many processes on every node."""
    if len(set(job.per_node)) > 1:
        counts = ", ".join(str(count) for count in job.per_node)
        account.note(
            f"nodes with {counts} devices: the launcher assumes the same number on every node; "
            "set it manually per node"
        )


def _nodes_note(job: ExportJob, account: Account) -> list[str]:
    uneven_nodes(job, account)
    if job.nodes == 1:
        return []
    return [
        f"# Run this on each of the {job.nodes} nodes, with MASTER_ADDR the first node and "
        f"NODE_RANK 0 to {job.nodes - 1}."
    ]


def quoted(word: object) -> str:
    return shlex.quote(str(word))
