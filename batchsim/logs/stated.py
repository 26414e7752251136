"""What a run's configuration states: options in a log's text, and a configuration file beside it.

A framework says which of its keys mean which of our quantities. The same key appears in several dresses:

    data.train_batch_size=128      --rollout-batch-size 128      --train.batch_size=128
    'num_prompts_per_step': 32     "group_size": 8               n_samples=8,

- An argument of argparse has dashes on the command line and underscores in the printed namespace: one key
  with dashes stands for both.
- A key too short to be told from other words is given with its dashes, ``--lr``, and counts with them only.
- What stands behind a ``#`` is a comment, and a value that is still a variable (``$N``, ``${a.b}``) or
  open (``None``, ``???``) is as good as absent.
- A configuration file only adds to what the log states. Where they differ, one of them is of another run,
  and both are named in an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from batchsim.errors import InputError
from batchsim.logs.config import Config
from batchsim.logs.rows import number

LONGEST_VALUE = 500
_END = 10
_OPEN = ("", "None", "null", "???")
_COMMENT = re.compile(r"(?:^|\s)#")


@dataclass(frozen=True, kw_only=True)
class Stated:
    """Values by our name, as text, and the framework's name for each."""

    texts: dict[str, str]
    names: dict[str, str]

    def number(self, name: str) -> float:
        """A value as a number; NaN where it is none or is not stated."""
        return number(self.texts.get(name))

    @property
    def numbers(self) -> dict[str, float]:
        """Every value that is a finite number."""
        values = {name: number(text) for name, text in self.texts.items()}
        return {name: value for name, value in values.items() if math.isfinite(value)}


class Options:
    """The keys of a framework's configuration, found in lines of a log.

    Parameters
    ----------
    keys : mapping
        Key -> our name; several keys may share a name, the first that is stated counts.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self.keys = keys
        self._spelling = {spelling: key for key in keys for spelling in _spellings(key)}

    @cached_property
    def needles(self) -> tuple[bytes, ...]:
        """What a line with an option holds: the ends of the keys, as many of them share theirs."""
        ends = {spelling[-_END:] for spelling in self._spelling}
        return tuple(end.encode() for end in sorted(ends) if not any(end != other and other in end for other in ends))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # The longest key first: group_size must not hide in a longer one.
        listed = "|".join(map(re.escape, sorted(self._spelling, key=len, reverse=True)))
        value = rf"['\"]?([^\s'\",}}\])\\]{{1,{LONGEST_VALUE}}})"
        return re.compile(rf"(?<![\w./-])\+{{0,2}}(?:--)?(?P<quote>['\"]?)({listed})(?P=quote)(?:=|: ?| +){value}")

    def read(self, line: str) -> dict[str, str]:
        """Options on a line, by key."""
        if not any(spelling in line for spelling in self._spelling):
            return {}
        if comment := _COMMENT.search(line):
            line = line[: comment.start()]
        return {self._spelling[key]: value for _, key, value in self._pattern.findall(line)}


def is_open(value: str) -> bool:
    """Whether a value is a variable or an interpolation that was not filled in."""
    return value.startswith("$") or value in _OPEN


def model_name(path: str) -> str:
    """Model behind a Hugging Face cache path or a folder; runs on two machines share only this."""
    cached = re.search(r"models--([^/]+)", path)
    return (cached[1].split("--")[-1] if cached else path.rstrip("/").rsplit("/", 1)[-1]).strip()


def same_value(name: str, one: str, other: str) -> bool:
    """Whether two values of a quantity mean the same."""
    if name == "model":
        return model_name(one) == model_name(other)
    a, b = number(one), number(other)
    if math.isfinite(a) and math.isfinite(b):
        return math.isclose(a, b, rel_tol=1e-6)
    return one.lower() == other.lower()


def _filed(config: Config, key: str) -> str | None:
    """A file's value of a key; files have underscores where command lines have dashes."""
    return next((value for name in (key, key.lstrip("-").replace("-", "_")) if (value := config.get(name))), None)


def _spellings(key: str) -> tuple[str, ...]:
    return (key,) if key.startswith("--") else (key, key.replace("-", "_"))


def merged(
    keys: Mapping[str, str],
    logged: Mapping[str, str],
    config: Config | None,
    *,
    where: str,
    free: Collection[str] = (),
    synonyms: bool = False,
) -> Stated:
    """What the log and a configuration file state together.

    Parameters
    ----------
    keys : mapping
        Key -> our name.
    logged : mapping
        Key -> value, as the log shows them.
    config : Config or None
        A configuration file.
    where : str
        The log, for messages.
    free : collection of str
        Our names whose values may differ, such as paths of data.
    synonyms : bool
        Whether two keys of one name must agree between log and file.

    Raises
    ------
    InputError
        Where log and file contradict each other.
    """
    known = {key: value for key, value in logged.items() if key in keys and not is_open(value)}
    filed = {key: value for key in keys if config and (value := _filed(config, key)) and not is_open(value)}
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    for key, name in keys.items():
        if key in known and config is not None:
            others = [key, *(other for other in filed if synonyms and keys[other] == name)]
            other = next((other for other in others if other in filed), None)
            if other is not None and name not in free and not same_value(name, known[key], filed[other]):
                there = "" if other == key else f"{other} "
                raise InputError(
                    f"{key} is {known[key]} in the log but {there}{filed[other]} in {config.path}",
                    remedy="give the configuration of this run, or none",
                    where=where,
                )
        if name not in texts and (key in known or key in filed):
            texts[name] = known.get(key, filed.get(key, ""))
            names[name] = key if key in known or config is None else f"{key} in {config.path}"
    return Stated(texts=texts, names=names)
