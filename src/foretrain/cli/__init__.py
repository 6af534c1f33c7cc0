"""The command line: parses, calls the public API, prints. No other logic lives here.

Exit codes: 0 success; 1 negative result; 2 invalid input; 101 internal error; 130 interrupted.
"""

from __future__ import annotations

import errno
import gc
import os
import sys

from foretrain.cli.process import COMPLETE, drop, hang_up, interrupted, say, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    try:
        # Start-up makes many objects that stay: looking through them for garbage took a tenth of a cold call.
        gc.set_threshold(100_000, 20, 20)
        _open_standard_streams()
        code = run(list(sys.argv[1:] if args is None else args))
        gc.freeze()  # nor is it looked through at the end, when everything goes anyway
    except KeyboardInterrupt:  # while the command was still being imported
        code = interrupted()
    sys.exit(code)


def run(args: list[str]) -> int:
    """Run one command; the exit code."""
    from foretrain.cli.app import addressed, app_for
    from foretrain.errors import Bug, ForetrainError

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a narrow encoding must not stop an answer
    try:
        command, rest, name = addressed(app_for(args or _typed()), args)
        code = command.main(rest, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except BrokenPipeError:
        return hang_up()
    except SystemExit as ended:  # the parser's own end of a pipe without a reader
        return hang_up() if ended.code == 1 else int(ended.code or 0)
    except KeyboardInterrupt:
        return interrupted()
    except ForetrainError as error:
        if isinstance(error, Bug):
            return _our_fault(error, args)
        say(str(error))
        return error.exit_code
    except Exception as error:
        if _is_of_stdout(error):
            drop(sys.stdout)
            say(f"cannot write to standard output ({os.strerror(error.errno)}).")  # type: ignore[attr-defined]
            return 2
        if hasattr(error, "format_message"):  # a usage error of the argument parser
            return _usage(error)
        if type(error).__name__ == "Abort":
            return 130
        return _our_fault(error, args)


def _open_standard_streams() -> None:
    """What was closed before we began leads nowhere, lest a file that we open takes its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            setattr(sys, name, os.fdopen(null, "w" if number else "r"))


def _typed() -> list[str]:
    """What the shell wants completed: only its command is loaded."""
    if COMPLETE not in os.environ:
        return []
    from foretrain.cli.completion import words_typed

    return words_typed()


def _is_of_stdout(error: Exception) -> bool:
    """Whether it is stdout that cannot be written: errors of files tell the file's name."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return isinstance(error, OSError) and error.filename is None and error.errno in full


def _usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    if not message:  # the group alone: its help was printed
        return 2
    say(message)
    if context is not None:
        tell(f"See '{context.command_path} --help'.")
    return 2


def _our_fault(error: Exception, args: list[str]) -> int:
    if os.environ.get("FORETRAIN_DEBUG") == "1" or "-v" in args or "--verbose" in args:
        import traceback

        traceback.print_exception(error)
    text = " ".join(str(error).split())
    say(f"internal error: {type(error).__name__}: {text[:300]}")
    tell(
        "This is a bug in Foretrain, not an error in your input. Please report it with the "
        "command line and the output of the same command with -v."
    )
    return 101
