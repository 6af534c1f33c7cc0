"""The command line: parses, calls the public API, prints. No other logic lives here.

Exit codes: 0 the answer; 1 the answer is no; 2 bad input, explained; 101 our bug; 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    # Start-up makes many objects that stay: looking through them for garbage took a tenth of a cold call.
    gc.set_threshold(100_000, 20, 20)
    code = run(list(sys.argv[1:] if args is None else args))
    gc.freeze()  # nor is it looked through at the end, when everything goes anyway
    sys.exit(code)


def run(args: list[str]) -> int:
    """Run one command; the exit code."""
    from foretrain.cli.app import addressed, app_for
    from foretrain.errors import Bug, ForetrainError

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a narrow encoding must not stop an answer
    try:
        command, rest, name = addressed(app_for(args), args)
        code = command.main(rest, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except BrokenPipeError:
        return hang_up()
    except KeyboardInterrupt:
        return interrupted()
    except ForetrainError as error:
        if isinstance(error, Bug):
            return _our_fault(error, args)
        _say(str(error))
        return error.exit_code
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the argument parser
            return _usage(error)
        if type(error).__name__ == "Abort":
            return 130
        return _our_fault(error, args)


def hang_up() -> int:
    """The reader of our output is gone: end quietly, as a signal would have ended us."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    return 141


def interrupted() -> int:
    _say("interrupted.")
    return 130


def _say(message: str) -> None:
    print(f"foretrain: {message}", file=sys.stderr)


def _usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    if not message:  # the group alone: its help was printed
        return 2
    _say(message)
    if context is not None:
        print(f"See '{context.command_path} --help'.", file=sys.stderr)
    return 2


def _our_fault(error: Exception, args: list[str]) -> int:
    if os.environ.get("FORETRAIN_DEBUG") == "1" or "-v" in args or "--verbose" in args:
        import traceback

        traceback.print_exception(error)
    text = " ".join(str(error).split())
    _say(f"internal error: {type(error).__name__}: {text[:300]}")
    print(
        "This is a fault of Foretrain, not of your input. Please report it with the command line and the "
        "output of the same command with -v.",
        file=sys.stderr,
    )
    return 101
