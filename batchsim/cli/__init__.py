"""The command line: one file per verb.

A verb's file imports nothing but typer when it loads, so that `--help` answers at once; the work is
imported when the verb runs. Exit status: 0 answered; 1 `predict` found no batch to recommend; 2 bad
input; 70 internal error, one line, with a traceback under `--debug`; 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer

from batchsim.cli.calibrate import calibrate
from batchsim.cli.decode import decode
from batchsim.cli.explain import explain
from batchsim.cli.gpus import gpus
from batchsim.cli.init import init
from batchsim.cli.measure import measure
from batchsim.cli.models import models
from batchsim.cli.power import power
from batchsim.cli.predict import predict
from batchsim.cli.simulate import app as simulate
from batchsim.cli.validate import validate
from batchsim.errors import InputError

BAD_INPUT, INTERNAL, INTERRUPTED = 2, 70, 130

app = typer.Typer(
    name="batchsim",
    help="Which batch size reaches an RL target soonest, before the sweep.\n\n"
    "A larger batch is faster exactly when its throughput gain r_q exceeds its sample cost r_N. "
    "`measure` states both from logs, `predict` forecasts them from one or two pilots or a plan, "
    "`calibrate` keeps what these say; `explain` shows how a log is understood; `validate` states how wrong it all is.",
    epilog="Start with: batchsim predict --example li2026-grpo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for verb in (init, explain, measure, calibrate, predict, decode, power, validate, gpus, models):
    app.command()(verb)
app.add_typer(simulate, name="simulate")


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


class _Output(io.TextIOWrapper):
    """Standard output that falls silent when its reader leaves, as under `| head`.

    typer and rich end such a process with status 1, which here would say that nothing can be recommended.
    """

    def write(self, text: str) -> int:
        with self._open_reader():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._open_reader():
            super().flush()

    @contextmanager
    def _open_reader(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    stdout = sys.__stdout__
    if stdout is not None and sys.stdout is stdout and not stdout.isatty():
        sys.stdout = _Output(stdout.detach(), encoding="utf-8", write_through=True)
    try:
        status = app(args=arguments, prog_name="batchsim", standalone_mode=False)
    except InputError as error:
        _stop(str(error), BAD_INPUT, debug)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if hasattr(error, "format_message"):
            _refuse(error, arguments, debug)
        _stop(f"internal error: {type(error).__name__}: {error} (--debug shows where)", INTERNAL, debug)
    sys.exit(status if isinstance(status, int) else 0)


def _refuse(error: Any, arguments: list[str], debug: bool) -> NoReturn:
    """Say what the option parser refuses as any other refusal is said; it shows the help where a verb is missing."""
    if not arguments or error.__class__.__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(BAD_INPUT)
    names = getattr(getattr(error, "param", None), "opts", [])
    given = [(a, b) for a, b in pairwise(arguments) if a in names]
    given += [(a.split("=", 1)[0], a.split("=", 1)[1]) for a in arguments if "=" in a and a.split("=", 1)[0] in names]
    said = error.format_message().rstrip(".")
    if given and error.message:
        said = f"{' '.join(given[-1])}: {error.message[0].lower()}{error.message[1:]}"
    verb = "batchsim" if arguments[0].startswith("-") else f"batchsim {arguments[0]}"
    path = verb if error.ctx is None else error.ctx.command_path
    _stop(f"{said}; {path} --help says what there is", BAD_INPUT, debug)


def _stop(message: str, status: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    print(f"batchsim: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
