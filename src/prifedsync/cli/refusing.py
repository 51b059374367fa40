"""How a command ends: bad input is one line and exit status 2, an interruption 130."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from ..values import BadValue

NAME = "prifedsync"
NO_MEMORY = ("allocate memory", "out of memory", "Storage size calculation overflowed", "integer multiplication overflow")


def refusing(command: click.Command) -> None:
    """Run the command with this process's words, and exit."""
    try:
        _check_words(sys.argv[1:])
        sys.exit(command.main(prog_name=NAME, standalone_mode=False))
    except click.UsageError as error:
        _refuse_usage(error.format_message())
    except BadValue as error:
        _refuse(str(error))
    except OverflowError as error:
        _refuse(f"these numbers are beyond what can be computed: {error}")
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _refuse(f"there is not enough memory for this: {' '.join(str(error).split())}")
    except OSError as error:
        _refuse(f"{error}; nothing already saved is lost")
    except (KeyboardInterrupt, click.Abort):
        print(f"{NAME}: interrupted", file=sys.stderr)
        sys.exit(130)


def _refuse_usage(reason: str) -> None:
    """What click refuses; a command without a word is answered by its help, which needs nobody's name before it."""
    if reason.startswith("Usage:"):
        print(reason, file=sys.stderr)
        sys.exit(2)
    _refuse(reason)


def _refuse(reason: str) -> None:
    print(f"{NAME}: {reason}", file=sys.stderr)
    sys.exit(2)


def _check_words(words: Iterable[str]) -> None:
    """Refuse what is not UTF-8: it could be neither printed nor written into a config."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            remedy = "rename it, or go there first and give a name relative to it"
            raise BadValue("argument", word, "is not UTF-8", remedy) from None


def _out_of_memory(error: Exception) -> bool:
    """torch has no class of its own for memory that the processor does not have, nor for sizes beyond any memory."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in NO_MEMORY)
