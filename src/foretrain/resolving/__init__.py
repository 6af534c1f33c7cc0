"""From what a door hands over to a scenario: names into values, and defaults for what was not said."""

from foretrain.resolving.draft import Draft
from foretrain.resolving.request import AUTO, Request
from foretrain.resolving.resolve import ask, draft, request_of, resolve

__all__ = ["AUTO", "Draft", "Request", "ask", "draft", "request_of", "resolve"]
