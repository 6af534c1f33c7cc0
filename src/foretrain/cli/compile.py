"""`foretrain compile`."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrain.cli.options import Output, Question


def compile_command(
    question: Question,
    output: Output,
    dump: Annotated[
        bool, typer.Option("--dump", help="Also list the items of every shape and every task.")
    ] = False,
) -> int:
    """Show the compiled program: rank classes, shapes and tasks."""
    from foretrain.cli.output import expect_files, give

    expect_files(output)
    asked = question.asked()
    import foretrain
    from foretrain.report.graph import graph_document

    graph = foretrain.compile_graph(**asked)
    return give(graph_document(graph, graph.asked, dump), output)
