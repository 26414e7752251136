"""What a run trained with: the batch arithmetic, from what the log states and what the user adds.

    rollout_batch = prompts x group_size
    train_batch   = rollout_batch x epochs / updates_per_rollout

All are whole numbers. A log states some of them; options supply the rest and may repeat, but never
contradict, what the log states. What is neither stated nor given is derived where the arithmetic
allows, then assumed (one epoch, one update per rollout step), and each assumption is a warning. A
framework that splits the rollout into mini-batches by a key of its own gets no such assumption: where
neither that key nor an option is known, the batch is an error that names both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from batchsim.errors import InputError

LARGEST = 1_000_000_000
COUNTS = ("prompts", "group_size", "rollout_batch", "train_batch", "updates_per_rollout", "epochs")


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What the user supplies because the log lacks it; None where nothing is supplied."""

    prompts: int | None = None
    group_size: int | None = None
    updates_per_rollout: int | None = None
    epochs: int | None = None
    step_seconds: float | None = None
    learning_rate: float | None = None
    chunks: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name in (*COUNTS, "chunks"):
                whole(value, field.name, where=_option(field.name))
            elif not 0 < value < math.inf:
                raise InputError(
                    f"{field.name} is {value}; it must be positive and finite",
                    remedy="give a positive number",
                    where=_option(field.name),
                )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settled recipe of one run; None where unknown.

    The two batches and updates_per_rollout are known unless `open` says why they are not.
    """

    prompts: int | None
    group_size: int | None
    rollout_batch: int | None
    train_batch: int | None
    updates_per_rollout: int | None
    epochs: int
    learning_rate: float | None
    open: str = ""

    @property
    def updates(self) -> int:
        """Optimizer updates per rollout step, 1 where unknown [1]."""
        return self.updates_per_rollout or 1

    @property
    def responses(self) -> float:
        """Kept responses per rollout step, NaN where unknown [responses]."""
        return math.nan if self.rollout_batch is None else float(self.rollout_batch)


class UnknownBatch(InputError):
    """The batch cannot be known from the log and the options alone."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a framework says about its recipe.

    Attributes
    ----------
    mini_batch : str
        Key that splits the rollout; without it and an option, updates_per_rollout is not assumed.
    one_epoch : bool
        Whether one epoch is the framework's own rule rather than an assumption.
    divisor : tuple of (int, str)
        Number that divides the train batch, and its name in the log; 1 where there is none.
    """

    mini_batch: str = ""
    one_epoch: bool = False
    divisor: tuple[int, str] = (1, "")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def whole(value: float, name: str, *, where: str) -> int:
    """`value` as a whole number of at least 1."""
    if not (math.isfinite(value) and 1 <= value <= LARGEST and value == int(value)):
        raise InputError(
            f"{name} is {value:.6g}; it must be a whole number from 1 to {LARGEST}",
            remedy="correct the log's configuration or the option",
            where=where,
        )
    return int(value)


def _quotient(numerator: int, denominator: int, *, name: str, arithmetic: str, where: str) -> int:
    result, rest = divmod(numerator, denominator)
    if rest or result < 1:
        raise InputError(
            f"{name} = {arithmetic} = {numerator / denominator:.6g}; it must be a whole number of at least 1",
            remedy="correct --prompts, --group-size, --epochs or --updates-per-rollout",
            where=where,
        )
    return result


def _merge(
    stated: Mapping[str, float], given: Overrides, names: Mapping[str, str], where: str
) -> tuple[dict[str, int], float | None]:
    """Counts and learning rate from both sides, after the check that they agree."""
    counts = {name: whole(stated[name], names.get(name, name), where=where) for name in COUNTS if name in stated}
    rate = stated.get("learning_rate")
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(
            f"{names.get('learning_rate', 'learning_rate')} is {rate}; it must be positive and finite",
            remedy="correct the log's configuration",
            where=where,
        )
    for name in (*COUNTS, "learning_rate"):
        value, known = getattr(given, name, None), rate if name == "learning_rate" else counts.get(name)
        if value is None:
            continue
        if known is not None and not math.isclose(value, known, rel_tol=1e-6):
            raise InputError(
                f"{_option(name)} {value:g} contradicts the log: {names.get(name, name)} {known:g}",
                remedy=f"drop {_option(name)}: it supplies what a log lacks",
                where=where,
            )
        if name == "learning_rate":
            rate = float(value)
        else:
            counts[name] = int(value)
    return counts, rate


def _rollout(counts: dict[str, int], inferred: float | None, where: str, notes: list[str]) -> None:
    """Complete prompts, group_size and rollout_batch in place, as far as two of them are known."""
    prompts, group = counts.get("prompts"), counts.get("group_size")
    if prompts and group:
        stated = counts.setdefault("rollout_batch", prompts * group)
        if stated != prompts * group:
            raise InputError(
                f"rollout_batch is {stated} but prompts x group_size = {prompts} x {group}",
                remedy="correct --prompts or --group-size",
                where=where,
            )
        if inferred and abs(inferred / stated - 1) > 0.01:
            notes.append(f"the log's rows point to {inferred:.0f} responses per rollout step, not to {stated}")
    elif "rollout_batch" not in counts and "train_batch" not in counts and inferred:
        counts["rollout_batch"] = whole(round(inferred), "the inferred rollout_batch", where=where)
        notes.append(f"rollout_batch {round(inferred)} is inferred from the log's rows: the log does not state it")
    total = counts.get("rollout_batch")
    for known, missing in (("group_size", "prompts"), ("prompts", "group_size")):
        if total and known in counts and missing not in counts:
            counts[missing] = _quotient(
                total,
                counts[known],
                name=missing,
                arithmetic=f"rollout_batch / {known} = {total}/{counts[known]}",
                where=where,
            )


def resolve(
    stated: Mapping[str, float],
    given: Overrides,
    *,
    inferred: float | None,
    names: Mapping[str, str],
    hint: str,
    where: str,
    notes: list[str],
    rules: Rules = Rules(),
    allow_unknown: bool = False,
) -> Recipe:
    """Settle the recipe of one run.

    Parameters
    ----------
    stated : mapping
        What the log states, by canonical name; counts, ``learning_rate`` and ``mini_prompts``, prompts
        per optimizer update.
    given : Overrides
        What the user supplies.
    inferred : float or None
        Responses per rollout step [responses] as the rows suggest, used only where nothing is stated.
    names : mapping
        Canonical name -> name in the log, for messages.
    hint : str
        What the framework's log is known to lack, for the message when the batch stays unknown.
    where : str
        File, for messages.
    notes : list of str
        Receives a sentence for every assumption.
    rules : Rules
        What the framework says about its recipe.
    allow_unknown : bool
        Whether a batch that cannot be known is left open rather than refused.

    Raises
    ------
    InputError
        For a contradiction, a count that is not whole, and a batch that cannot be known.
    """
    counts, rate = _merge(stated, given, names, where)
    _rollout(counts, inferred, where, notes)
    try:
        _batches(counts, stated, inferred, hint, where, notes, rules)
        unknown = ""
    except UnknownBatch as error:
        if not allow_unknown:
            raise
        unknown = f"{error.message}; {error.remedy}"
    # A pass has an update at least, so that one update is one pass.
    follows = counts.get("updates_per_rollout") == 1 and not rules.mini_batch
    if "epochs" not in counts and not rules.one_epoch and not follows:
        notes.append(f"{names.get('epochs', 'epochs')} is not stated; 1 is assumed")
    return Recipe(
        prompts=counts.get("prompts"),
        group_size=counts.get("group_size"),
        rollout_batch=counts.get("rollout_batch"),
        train_batch=counts.get("train_batch"),
        updates_per_rollout=counts.get("updates_per_rollout"),
        epochs=counts.get("epochs", 1),
        learning_rate=rate,
        open=unknown,
    )


def _batches(
    counts: dict[str, int],
    stated: Mapping[str, float],
    inferred: float | None,
    hint: str,
    where: str,
    notes: list[str],
    rules: Rules,
) -> None:
    """Complete updates_per_rollout and the two batches in place."""
    epochs = counts.get("epochs", 1)
    if "rollout_batch" not in counts and "train_batch" not in counts:
        missing = [_option(name) for name in ("prompts", "group_size") if name not in counts]
        also = "and --updates-per-rollout, --epochs where they are not 1"
        if rules.mini_batch and "mini_prompts" not in stated and "updates_per_rollout" not in counts:
            also = f"and --updates-per-rollout, as {rules.mini_batch} is not stated either"
        raise UnknownBatch(
            "the batch is unknown: train_batch = prompts x group_size x epochs / updates_per_rollout" + hint,
            remedy=f"give {' and '.join(missing)} ({also})",
            where=where,
        )
    mini = whole(stated["mini_prompts"], rules.mini_batch, where=where) if "mini_prompts" in stated else None
    updates = counts["updates_per_rollout"] = _updates(counts, epochs, mini, inferred, where, notes, rules)
    if "train_batch" not in counts:
        total = counts["rollout_batch"]
        arithmetic = f"rollout_batch x epochs / updates_per_rollout = {total} x {epochs}/{updates}"
        counts["train_batch"] = _quotient(
            total * epochs, updates, name="train_batch", arithmetic=arithmetic, where=where
        )
    if "rollout_batch" not in counts:
        batch = counts["train_batch"]
        arithmetic = f"train_batch x updates_per_rollout / epochs = {batch} x {updates}/{epochs}"
        counts["rollout_batch"] = _quotient(
            batch * updates, epochs, name="rollout_batch", arithmetic=arithmetic, where=where
        )
        _rollout(counts, None, where, notes)
    divisor, name = rules.divisor
    if counts["train_batch"] % divisor:
        raise InputError(
            f"train_batch {counts['train_batch']} is no multiple of {name} {divisor}, which every device trains on",
            remedy="correct --prompts, --group-size, --epochs or --updates-per-rollout",
            where=where,
        )


def _updates(
    counts: Mapping[str, int],
    epochs: int,
    mini: int | None,
    inferred: float | None,
    where: str,
    notes: list[str],
    rules: Rules,
) -> int:
    """Optimizer updates per rollout step: stated, from the two batches, or assumed."""
    total, batch, prompts = (counts.get(name) for name in ("rollout_batch", "train_batch", "prompts"))
    updates = counts.get("updates_per_rollout")
    arithmetic, numerator, denominator = "", 0, 0
    if total is not None and batch is not None:
        arithmetic = f"rollout_batch x epochs / train_batch = {total} x {epochs}/{batch}"
        numerator, denominator = total * epochs, batch
    elif mini is not None and prompts is not None:
        arithmetic = f"prompts x epochs / {rules.mini_batch} = {prompts} x {epochs}/{mini}"
        numerator, denominator = prompts * epochs, mini
    if arithmetic:
        derived = _quotient(numerator, denominator, name="updates_per_rollout", arithmetic=arithmetic, where=where)
        if updates is not None and updates != derived:
            raise InputError(
                f"updates_per_rollout is {updates} but {arithmetic} = {derived}",
                remedy="correct --updates-per-rollout, --epochs, --prompts or --group-size",
                where=where,
            )
        return derived
    if updates is not None:
        return updates
    if batch is not None and inferred is not None:
        whole_number = max(1, round(inferred * epochs / batch))
        if abs(inferred * epochs / batch / whole_number - 1) < 0.01:
            return whole_number
    if rules.mini_batch:
        reason = f"{mini} is part of unknown prompts" if mini else "is not stated"
        raise UnknownBatch(
            "the batch per optimizer update is unknown: train_batch = rollout_batch x epochs / updates_per_rollout, "
            f"and {rules.mini_batch} {reason}",
            remedy=(
                "give --prompts, --group-size or --updates-per-rollout"
                if mini
                else "give --updates-per-rollout (1 where a rollout is one mini-batch), or --config"
            ),
            where=where,
        )
    notes.append("updates_per_rollout is not stated; 1 is assumed")
    return 1
