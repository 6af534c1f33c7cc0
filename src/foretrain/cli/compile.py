"""`foretrain compile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.cli.options import Output, Question

if TYPE_CHECKING:
    from foretrain.report.document import Document


def compile_command(question: Question, output: Output, dump: bool = False) -> Document:
    """Show the compiled program: rank classes, shapes and tasks."""
    asked = question.asked()
    import foretrain
    from foretrain.report.graph import graph_document

    graph = foretrain.compile_graph(**asked)
    return graph_document(graph, graph.asked, dump)
