"""Writes docs/accuracy.md: one table of errors, each taken from the page that holds it: `python docs/accuracy_page.py`.

The other pages are compared with the program by tests; this one repeats their numbers and retypes none. A lookup that
finds nothing stops the script.
"""

from __future__ import annotations

import re
from pathlib import Path

from batchsim.validate.decisions.ranges import MEAN_GOAL, P95_GOAL

DOCS = Path(__file__).parent
PAGE = DOCS / "accuracy.md"

HEAD = """# How wrong it is

Every claim of the package has a `batchsim validate` that scores it on data it was not fitted to. This page gathers
the scores; it is written by `python docs/accuracy_page.py` from the tables of the pages named, which tests compare
with the program. "Covered" is the share of 80 % intervals that hold the measured value, unless the row says
otherwise. Goals were set before; **bold** misses its goal.
"""

NOTES = """
## What is missed, in words

- **A single learning rate fraction does not serve all rows** of the small transformer
  ([validation.md](validation.md)), and no smooth law of this family gives Li et al.'s fixed-rate pilot and their
  `r_N` = 1.0 at eight times the batch at once ([evidence.md](evidence.md)).
- **On Li et al.'s sweep a peer that changes nothing beyond the pilot is nearer than the forecast**, whose medians are
  all too slow; its intervals hold the four times.
- **From specifications alone the MLPerf step is wrong, and its interval excludes the measured one**: tools, turns and
  waits are not in the model, as the forecast says ([validation.md](validation.md)).
- **Synchronous to asynchronous** is missed on verl's printed steps, by a factor of {asynchronous} and more, and met
  with training as printed ([pipeline.md](pipeline.md)).
- **Refits** are not bytes over a link: copies of weights are predicted {refit} too short where engine and trainer share
  GPUs ([training.md](training.md)).
- **Sparse signal breaks the law** in simulated worlds, and two short pilots near the best rate miss their goals there
  ([worlds_results.md](worlds_results.md)).
- **The worst decisions are worse than asked**: the 95th percentile of regret over random worlds misses its goal by a
  factor of {tail}; of the {largest} largest regrets {sparse} are where signal lies in few coordinates
  ([decisions.md](decisions.md)).
- No recommendation has been tried on a cluster by us: the published sweep of Li et al., the runs of MLPerf and our
  small transformer are the measured rows.

What has to hold for any of it: [limits.md](limits.md).
"""


def rows(page: str, header: str) -> list[dict[str, str]]:
    """Rows of the table of a page whose header line starts with given cells.

    Parameters
    ----------
    page : str
        File name in docs/.
    header : str
        Start of the header line, as '| left out | of |'.

    Returns
    -------
    list of dict
        Column name to cell, '#k' for the k-th column.
    """
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(header))
    names = cells(lines[start])
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        row = cells(line)
        found.append(dict(zip(names, row, strict=True)) | {f"#{k}": cell for k, cell in enumerate(row)})
    return found


def cells(line: str) -> list[str]:
    """Cells of a line of a table, without emphasis."""
    return [c.strip().replace("**", "") for c in line.strip().strip("|").split("|")]


def row(page: str, header: str, *first: str) -> dict[str, str]:
    """The one row of a table whose first cells are given."""
    (found,) = [r for r in rows(page, header) if all(r[f"#{k}"] == cell for k, cell in enumerate(first))]
    return found


def text(page: str, pattern: str) -> str:
    """What the one group of a pattern matches in a page's text."""
    (found,) = set(re.findall(pattern, (DOCS / page).read_text(encoding="utf-8")))
    return str(found)


def percent(share: str) -> str:
    """A log error as a percentage, both as printed: '.057' is '5.7 %'."""
    return f"{100 * float(share):.3g} %"


def number(shown: str) -> float:
    """First number of a cell."""
    return float(re.findall(r"[\d.]+", shown)[0])


def scored(value: str, goal: str, met: bool) -> str:
    """Two cells: the value, bold where it misses the goal, and the goal."""
    return f"{value if met else f'**{value}**'} | {goal}"


def page() -> str:
    """The page's text.

    Returns
    -------
    str
    """
    default = {r["#0"]: r["#1"] for r in rows("validation.md", "| default form per rule |")}
    forecast = row("validation.md", "| form | mean | at 64 times", "forecast from P <= 32")
    mlperf = text("validation.md", r"(B = 1,024 from B = 256 and 512: median \|log error\| .*)")
    li = text("validation.md", r"(P = 512 to 4,096 from P <= 256: median \|log error\| .*)")
    tiny = text("validation.md", r"(T/T0 from the two smallest batches: median .*)")
    phases = text("validation.md", r"(phases and steps of rows left out: .*)")
    gpu = row("decode.md", "| split | of | rows |", "held-out GPU", "all")
    model = row("decode.md", "| split | of | rows |", "held-out model", "all")
    sheet = row("decode.md", "| split | of | rows |", "datasheet alone", "all")
    experts = row("decode.md", "| experts | rows |", "all")
    makespan = row("rollout.md", "| vLLM | rows |", "after exclusions (8 + 2 capped, 1 contradiction, 4 copies)")
    drain = rows("rollout.md", "| drain | running batch |")
    left_model = row("training.md", "| left out | of | rows |", "left-out model", "all")
    left_row = row("training.md", "| left out | of | rows |", "left-out row", "all")
    steps = row("pipeline.md", "| rows | n | error |", "all")
    star = row("decisions.md", "| choice | mean regret |", "the star of `predict`")
    prior = row("decisions.md", "| choice | mean regret |", "prior only")
    share, mean_met, tail_met = re.findall(
        r"Mean regret ([\d.]+) of the prior-only choice's \((met|missed)\); 95th percentile [\d.]+ % \((met|missed)\)",
        (DOCS / "decisions.md").read_text(encoding="utf-8"),
    )[0]
    held_r_n = text("decisions.md", r"80 % intervals hold (\d+ %) of r_N")
    worlds = row("worlds_results.md", "| row, c_0 | forecasts", "all")

    def log_error(sentence: str) -> str:
        return percent(re.findall(r"\|log error\| ([\d.]+)", sentence)[0])

    def held(sentence: str) -> str:
        return re.findall(r"(?:hold) (\d+ %)", sentence)[0]

    def peer(sentence: str) -> str:
        return percent(re.findall(r"rows?(?: .*?)?[;,] (?:[^:;]+): ([\d.]+)", sentence)[0])

    law_error, law_peer = default["median absolute log error"], default["the hyperbola's on the same points"]
    median = number(worlds["moments"])
    table = [
        ("law", "largest batch of a published sweep, form by rule", "samples", "validation.md",
         scored(percent(law_error), "below the peer", float(law_error) < float(law_peer)),
         f"{percent(law_peer)} (hyperbola)", default["covered by 80 % intervals"]),
        ("law", "small transformer from its pilots' norms, 2 to 32 times the batch", "samples", "validation.md",
         scored(forecast["mean"], "8 %", number(forecast["mean"]) <= 8), "", ""),
        ("law", "simulated worlds from two short pilots", "forecast", "worlds_results.md",
         scored(f"{median:.0f} %", "5 %", median <= 5), f"{worlds['hyperbola'].split(' / ')[0]} % (hyperbola)",
         f"{worlds['covered']} %"),
        ("forecast", "MLPerf GRPO at 1,024 from 256 and 512: step, q, r_q", "mlperf", "validation.md",
         f"{log_error(mlperf)} | -", f"{peer(mlperf)} (power law)", held(mlperf)),
        ("forecast", "Li et al. from P <= 256: T/T0, r_N, r_q (90 % intervals)", "li2026", "validation.md",
         f"{log_error(li)} | -", f"{peer(li)} (nothing changes)", held(li)),
        ("forecast", "small transformer from its two smallest batches: T/T0", "tiny", "validation.md",
         f"{log_error(tiny)} | -", f"{peer(tiny)} (power law)", held(tiny)),
        ("decision", "batch from two pilots over random worlds: mean regret", "decisions", "decisions.md",
         scored(star["mean regret"], f"{MEAN_GOAL:g} of the prior-only choice's", mean_met == "met"),
         f"{prior['mean regret']} (prior only), a share of {share}", held_r_n),
        ("decision", "the same: 95th percentile of regret", "decisions", "decisions.md",
         scored(star["95th percentile"], f"{100 * P95_GOAL:g} %", tail_met == "met"),
         f"{prior['95th percentile']} (prior only)", ""),
        ("system", "time per output token, GPU left out", "serving", "decode.md",
         f"{gpu['ours'].split(' / ')[0]} % | -", f"{gpu['peer'].split(' / ')[0]} % (aiconfigurator)", gpu["in 80 %"]),
        ("system", "time per output token, datasheet alone", "serving", "decode.md",
         f"{sheet['ours'].split(' / ')[0]} % | -", f"{sheet['peer'].split(' / ')[0]} % (aiconfigurator)",
         sheet["in 80 %"]),
        ("system", "time per output token, model left out", "serving", "decode.md",
         f"{model['ours'].split(' / ')[0]} % | -", f"{model['peer'].split(' / ')[0]} % (aiconfigurator)",
         model["in 80 %"]),
        ("system", "experts' kernel, number of experts left out: mean", "kernels", "decode.md",
         scored(experts["mean"], "5 %", number(experts["mean"]) <= 5), f"{experts['line: mean']} (line)", ""),
        ("system", "the same: largest", "kernels", "decode.md",
         scored(experts["largest"], "12 %", number(experts["largest"]) <= 12), f"{experts['line: largest']} (line)",
         ""),
        *[("system", f"drain of a rollout, {r['#0']}: tokens/s", "trace", "rollout.md",
           scored(r["tokens/s"], "10 %", number(r["tokens/s"]) <= 10), "", "") for r in drain if "blind" in r["#0"]],
        ("system", "makespan of a batch sent at once, vLLM: median factor", "makespan", "rollout.md",
         scored(makespan["median factor"], "1.35", number(makespan["median factor"]) <= 1.35), "", ""),
        ("system", "update of a trainer, model left out", "training", "training.md",
         scored(f"{number(left_model['ours'])} %", "20 %", number(left_model["ours"]) <= 20),
         f"{left_model['peer']} (one MFU)", left_model["in 80 %"]),
        ("system", "update of a trainer, row left out", "training", "training.md",
         scored(f"{number(left_row['ours'])} %", "12 %", number(left_row["ours"]) <= 12),
         f"{left_row['peer']} (one MFU)", left_row["in 80 %"]),
        ("system", "whole RL steps from specifications", "rl-steps", "pipeline.md",
         scored(f"{number(steps['error'])} %", "25 %", number(steps["error"]) <= 25), "", steps["in 80 %"]),
        ("system", "phases and steps of printed tables, row left out", "steps", "validation.md",
         scored(log_error(phases), "15 %", number(log_error(phases)) <= 15), f"{peer(phases)} (mean factor)",
         held(phases)),
    ]  # fmt: skip
    out = [HEAD, "| side | claim | median error | goal | peer | covered | `validate` |"]
    out.append("|---|---|---|---|---|---|---|")
    for side, claim, name, source, error, other, covered in table:
        out.append(f"| {side} | {claim} | {error} | {other or '-'} | {covered or '-'} | [{name}]({source}) |")
    largest, sparse = re.findall(
        r"Of the (\d+) largest regrets (\d+) are", (DOCS / "decisions.md").read_text(encoding="utf-8")
    )[0]
    notes = NOTES.format(
        asynchronous=text("pipeline.md", r"is missed\*\*, by a factor of ([\d.]+) and more"),
        refit=row("training.md", "| phase | of | rows |", "synchronisation", "colocated")["bias"].removeprefix("-"),
        tail=text("decisions.md", r"missed, by a factor of (\w+)\.\*\*"),
        largest=largest,
        sparse=sparse,
    )
    return "\n".join(out) + "\n" + notes


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
