"""The documentation, held to the code: links, code blocks, and names that both must have. Without torch."""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement

import argosy
from argosy.cli import cli
from argosy.cluster.settings import FLAGS, variable

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "argosy"
GUIDE = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *GUIDE]
CONFIGURATION = ROOT / "docs" / "configuration.md"

VARIABLE = r"ARGOSY_[A-Z]+(?:_[A-Z]+)*"
# An example in the text of the page, not a variable.
PATTERN = "ARGOSY_X_Y"
OF_TESTS = "ARGOSY_TEST_DATA"


def each_page() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def python_blocks(page: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of each block that is marked as Python."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, match.start()) + 1, textwrap.dedent(match[1])


def prose(page: Path) -> str:
    """A page without its code blocks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page says after `#`, as GitHub has it."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {word.replace(" ", "-") for word in words}


def variables_in_source() -> set[str]:
    """Every variable of ours that the code spells out, or makes from a setting."""
    found = {variable(setting) for setting in FLAGS}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(f"^{VARIABLE}$", node.value))
    return found


def words_with_dashes(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z_-]*[a-z]|(?<![\w-])--ps\b", text))


@each_page()
def test_python_blocks_compile(page: Path) -> None:
    for line, block in python_blocks(page):
        compile(block, f"{page.name}:{line}", "exec")


@each_page()
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(found), f"{page.name}: no heading for {target}"


@each_page()
def test_fences_are_closed(page: Path) -> None:
    assert len(re.findall(r"^```", page.read_text(encoding="utf-8"), re.MULTILINE)) % 2 == 0


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.name)
def test_the_readme_leads_to_every_page(page: Path) -> None:
    assert f"(docs/{page.name})" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_variables_are_on_the_page_and_in_the_code() -> None:
    documented = set(re.findall(VARIABLE, CONFIGURATION.read_text(encoding="utf-8"))) - {PATTERN}
    assert documented == variables_in_source() | {OF_TESTS}


def test_the_variable_of_the_tests_is_one() -> None:
    assert any(
        OF_TESTS in path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_mnist.py")
    )


def test_flags_are_on_the_page_and_in_the_code() -> None:
    rows = re.findall(
        rf"^\| `--(\w+)` \| `({VARIABLE})` \|", CONFIGURATION.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert dict(rows) == {setting: variable(setting) for setting in FLAGS}


@pytest.mark.parametrize("name", ["run", "demo"])
def test_options_of_the_command_line_are_on_the_page(name: str) -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    section = text[text.index("## Options of the launcher") :]
    options = [option for option in cli.commands[name].params if isinstance(option, click.Option)]
    spellings = {word for option in options for word in (*option.opts, *option.secondary_opts)}
    assert spellings
    assert spellings <= words_with_dashes(section)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_commands_are_told_of(name: str) -> None:
    assert f"`argosy {name}" in (ROOT / "docs" / "launcher.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", argosy.__all__)
def test_public_names_are_told_of(name: str) -> None:
    pattern = re.compile(rf"\b{name}\b")
    assert any(pattern.search(page.read_text(encoding="utf-8")) for page in GUIDE)


def test_the_versions_of_torch_are_the_same_everywhere() -> None:
    """What is claimed, what `make` installs, and what the guide says: what was run, and no more."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (claimed,) = (each for each in project["dependencies"] if each.startswith("torch"))
    allowed = Requirement(claimed).specifier
    guide = (ROOT / "docs" / "getting-started.md").read_text()
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    ((oldest, newest),) = re.findall(r"run with (\S+) \(CPU\) and (\S+) \(the build with CUDA\)", guide)
    assert oldest == pinned
    assert oldest in allowed
    assert newest in allowed
    major, minor, _ = newest.split(".")
    assert f"{major}.{int(minor) + 1}.0" not in allowed
    major, minor, _ = oldest.split(".")
    assert f"{major}.{int(minor) - 1}.9" not in allowed


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_file_that_a_table_names_is_there(page: str) -> None:
    """Of several names in a row, those after the first may be without their folder."""
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    named = 0
    for row in rows:
        folder = ""
        for name in re.findall(r"`([\w/]+(?:\.py|\.txt|/))`", row):
            places = [ROOT / name, ROOT / "src/argosy" / name, ROOT / "src/argosy" / folder / name]
            assert any(place.exists() for place in places), f"{page}: {name}"
            folder = name.rpartition("/")[0] or folder
            named += 1
    assert named > 30
