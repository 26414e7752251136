"""What the README and the docs promise is what the program prints."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import batchsim
from batchsim.cli import main
from batchsim.plan import Plan
from batchsim.specs.recipe import Recipe

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert not stopped.value.code
    return capsys.readouterr().out


def test_the_readmes_answer_is_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    block = README.split("```")[1].strip()
    command, _, answer = block.partition("\n")
    out = printed(capsys, *command.removeprefix("$ batchsim ").split())
    sentences = [line for line in answer.splitlines() if line[:1].isalpha()]
    assert len(sentences) >= 6
    for sentence in sentences:
        assert sentence in out
    # The table is shown in the shape of a narrower terminal; its numbers are the same.
    numbers = re.findall(r"\d[\d,.e-]*\d", "".join(line for line in answer.splitlines() if line[:1] == " "))
    assert len(numbers) > 40
    missing = [n for n in numbers if n not in out]
    assert not missing


def test_the_readme_holds_exactly_two_set_up_commands() -> None:
    blocks = re.findall(r"^```sh\n(.*?)\n```$", README, re.M | re.S)
    assert len(blocks) == 2
    assert all("-m venv" in block and "\n" not in block for block in blocks)


def test_every_link_leads_to_a_file() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_key_of_a_plan_is_documented() -> None:
    text = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    plan = Plan(recipe=Recipe(prompts=1))
    for section in dataclasses.fields(Plan):
        if section.name == "source":
            continue
        assert f"[{section.name}]" in text
        names = [f.name for f in dataclasses.fields(getattr(plan, section.name))]
        assert names
        assert [name for name in names if name not in text] == []


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


@pytest.mark.parametrize(
    "arguments",
    [
        ("measure", "--example", "verl-sweep", "--targets", "0.5,0.55"),
        ("predict", "--example", "verl-sweep", "--target", "0.55", "--gpus", "8", "--price", "2"),
        ("predict", str(ROOT / "docs" / "pipeline_plan.toml"), "--draws", "50"),
        ("calibrate", "--example", "verl-sweep", "--target", "0.55"),
        ("calibrate", "--example", "verl-sweep", "--target", "0.9", "--pilot", "128,256"),
        ("explain", "--example", "verl-sweep"),
        ("decode", "--model", "Qwen3-30B-A3B", "--gpu", "H100"),
        ("gpus", "H100"),
        ("simulate", "rollout", "--law", "0.01,2e-5,3e-9", "--prompts", "4"),
        ("simulate", "rollout", "--law", "0.01,2e-5,3e-9", "--prompts", "4", "--mode", "partial"),
    ],
)
def test_every_key_of_an_answer_is_documented(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    answer = json.loads(printed(capsys, *arguments, "--json"))
    text = (ROOT / "docs" / "answers.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text))
    rules = {"sqrt", "fixed", "linear", "user", "tuned", "invariant"}
    assert sorted(set(keys(answer)) - words - rules) == []


@pytest.mark.parametrize("name", ["nomenclature", "accuracy"])
def test_a_page_that_a_script_writes_is_current(name: str) -> None:
    script = runpy.run_path(str(ROOT / "docs" / f"{name}_page.py"))
    # `python docs/NAME_page.py` rewrites it.
    assert script["page"]() == (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_what_is_cited_is_in_the_bibliography() -> None:
    text = (ROOT / "docs" / "references.bib").read_text(encoding="utf-8")
    keys_of = set(re.findall(r"^@\w+\{(\w+),$", text, re.M))
    eprints = set(re.findall(r"eprint = \{([\d.]+)\}", text))
    for page in (ROOT / "docs").glob("*.md"):
        source = page.read_text(encoding="utf-8")
        assert set(re.findall(r"references\.md#(\w+)", source)) - {"key"} <= keys_of, page.name
        assert set(re.findall(r"arXiv:(\d{4}\.\d{4,5})", source)) <= eprints, page.name


def test_the_names_of_the_package_are_listed() -> None:
    text = (ROOT / "docs" / "api" / "batchsim.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)`", text.split("---|\n")[1])) - {"r_N", "q"} == set(batchsim.__all__)
