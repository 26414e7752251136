"""The command line: one file per verb.

A verb's file imports nothing but typer when it loads, so that `--help` answers at once; the work is
imported when the verb runs. Exit status: 0 answered; 1 `predict` found no batch to recommend; 2 bad
input; 70 internal error, one line, with a traceback under `--debug`.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from batchsim.cli.init import init
from batchsim.cli.measure import measure
from batchsim.cli.predict import predict
from batchsim.errors import InputError

BAD_INPUT, INTERNAL, INTERRUPTED = 2, 70, 130

app = typer.Typer(
    name="batchsim",
    help="Which batch size reaches an RL target soonest, before the sweep.\n\n"
    "A larger batch is faster exactly when its throughput gain r_q exceeds its sample cost r_N. "
    "`measure` states both from logs, `predict` forecasts them from one or two pilots or a plan.",
    epilog="Start with: batchsim predict --example li2026-grpo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for verb in (init, measure, predict):
    app.command()(verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        from batchsim import __version__

        typer.echo(f"batchsim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on an error; works after any verb.")] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    try:
        app(args=arguments, prog_name="batchsim")
    except InputError as error:
        _stop(str(error), BAD_INPUT, debug)
    except KeyboardInterrupt:
        _stop("interrupted", INTERRUPTED, debug=False)
    except BrokenPipeError:
        # The reader of a pipe has left (`| head`); nothing is left to tell it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        _stop(f"internal error: {type(error).__name__}: {error} (--debug shows where)", INTERNAL, debug)
    sys.exit(0)


def _stop(message: str, status: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    print(f"batchsim: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
