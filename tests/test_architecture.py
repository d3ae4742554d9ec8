"""The architecture, guarded: what is exported, who may import whom, and what is found nowhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import argosy

SOURCE = Path(argosy.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

DRAWING = SOURCE.parents[1] / "docs" / "architecture.md"
# Any part may import these, and the drawing does not say so.
LEAVES = ("protocol", "modes", "stacks", "script", "events", "errors", "torch_private")
# The sub-packages of a part, and what each may import of its siblings. Data flows one way.
MAY_IMPORT_INSIDE = {
    "remote": {
        "transport": set(),
        "operations": {"transport"},
        "plan": {"operations", "transport"},
        "task": {"operations", "plan", "transport"},
        "client": {"operations", "transport"},
    }
}
# No input or output, no clock, no chance, no tensors: decisions, and plain data.
_PLAIN = {"argosy", "__future__", "collections", "dataclasses", "enum", "math", "msgspec", "typing"}
PURE = {"update": _PLAIN, "protocol": _PLAIN}
WITHOUT_TORCH = {
    "errors",
    "events",
    "script",
    "modes",
    "protocol",
    "cluster",
    "update",
    "launch",
    "observe",
    "bench",
    "cli",
}
# A forked task runs the user's own script, from the user's own disk.
RUNS_THE_SCRIPT = {"argosy.launch.forked_task"}
RUNS_WHAT_IT_READS = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
# Private attributes that torch looks for on an optimizer, ours too; others are found without a list.
OF_AN_OPTIMIZER = {
    "_opt_called",
    "_optimizer_step_post_hooks",
    "_optimizer_step_pre_hooks",
    "_step_supports_amp_scaling",
}
# The launcher does not import torch: what it tells a task to preload is a text.
NAMES_TORCH_IN_A_TEXT = {("argosy.launch.job", "torch._dynamo")}
NO_NAMES_LIKE_THESE = {"utils", "helpers", "manager", "common", "misc", "base", "core"}
# What is larger than this does two things, most often.
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60
# What is larger all the same, and why.
LARGE = {
    "argosy.remote.client.cluster_client": "one class: the state of a connection, all of it under one lock",
    "argosy.remote.client.dispatch": "a remote tensor and its dispatch need each other",
    "argosy.remote.task.client_session": "one method for each instruction of a batch",
}


def part_of(module: str) -> str:
    """`argosy.server.shard` belongs to `server`; what is in `argosy/__init__.py` to `argosy`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else names[0]


def name_of(path: Path) -> str:
    names = list(path.relative_to(SOURCE.parent).with_suffix("").parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            parts = [f"{base}.{alias.name}" for alias in node.names if list(SOURCE.glob(f"{alias.name}*"))]
            yield from parts if base == "argosy" and parts else [base]


# --- what is exported -------------------------------------------------------------------------------------
def test_the_public_names_are_these() -> None:
    expected = [
        "ArgosyError",
        "Async",
        "CheckpointDamaged",
        "Client",
        "ClusterSpec",
        "ConfigError",
        "Greedy",
        "HookFailed",
        "JobFailed",
        "ModelMismatch",
        "RemoteError",
        "Replica",
        "Ring",
        "RoundRobin",
        "Server",
        "Session",
        "Split",
        "Sync",
        "TaskLost",
        "Verdict",
        "WaitTimeout",
        "capture",
        "connect",
        "create_local_server",
        "device",
        "fetch",
        "hooks",
        "join",
        "load",
        "place",
        "scale_learning_rate",
    ]
    assert argosy.__all__ == expected
    assert dir(argosy) == expected


@pytest.mark.parametrize("name", argosy.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(argosy, name).__doc__


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'argosy' has no attribute 'Adam'"):
        argosy.Adam  # noqa: B018


@pytest.mark.parametrize("module", ["argosy", "argosy.cli", "argosy.cluster.discover", "argosy.launch.local"])
def test_importing_it_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# --- who imports whom -------------------------------------------------------------------------------------
def drawn() -> dict[str, list[str]]:
    """The drawing: each part, and the parts or modules that it imports, from top to bottom."""
    lines = re.findall(r"^(\w+) +──>(.*)$", DRAWING.read_text(), re.MULTILINE)
    return {part: [each.strip() for each in imported.split(",") if each.strip()] for part, imported in lines}


def imported() -> dict[str, set[str]]:
    """Each part, and the modules of other parts that it imports anywhere."""
    found: dict[str, set[str]] = {part_of(name_of(path)): set() for path in MODULES}
    for path in MODULES:
        part = part_of(name_of(path))
        ours = {module for module in imports_of(path) if module.split(".")[0] == "argosy"}
        found[part] |= {module.removeprefix("argosy.") for module in ours if part_of(module) != part}
    return found


def test_the_drawing_has_every_part_and_every_import() -> None:
    drawing = drawn()
    assert imported().keys() == drawing.keys()
    for part, modules in imported().items():
        known = {*drawing[part], *(() if part in LEAVES else LEAVES)}
        missing = [each for each in modules if not {each, each.split(".")[0]} & known]
        assert not missing, f"{part} imports {missing}, which the drawing does not say"
        unused = [each for each in drawing[part] if not any(f"{m}.".startswith(f"{each}.") for m in modules)]
        assert not unused, f"the drawing says that {part} imports {unused}"


def test_imports_only_go_down_in_the_drawing() -> None:
    """So there is no circle between parts."""
    order = list(drawn())
    for part, modules in imported().items():
        upward = [each for each in modules if order.index(each.split(".")[0]) <= order.index(part)]
        assert not upward, f"{part} imports {upward}, drawn above it"


@pytest.mark.parametrize("part", MAY_IMPORT_INSIDE)
def test_imports_between_sub_packages_go_the_allowed_way(part: str) -> None:
    """Imports inside functions and for typing count: no two sub-packages need each other."""
    rules, forbidden = MAY_IMPORT_INSIDE[part], []
    found = {path.parent.name for path in (SOURCE / part).glob("*/__init__.py")}
    assert found == rules.keys()
    assert not [path.name for path in (SOURCE / part).glob("*.py") if path.stem != "__init__"]
    for own, allowed in rules.items():
        for path in (SOURCE / part / own).rglob("*.py"):
            for module in imports_of(path):
                sibling = module.removeprefix(f"argosy.{part}").lstrip(".").partition(".")[0]
                if module.startswith(f"argosy.{part}") and sibling not in {own, *allowed}:
                    forbidden.append(f"{name_of(path)} imports {module}")
    assert not forbidden


@pytest.mark.parametrize("part", PURE)
def test_pure_parts_stay_pure(part: str) -> None:
    for path in (SOURCE / part).rglob("*.py"):
        foreign = {module.split(".")[0] for module in imports_of(path)} - PURE[part]
        assert not foreign, f"{name_of(path)} imports {foreign}"


def test_parts_that_start_fast_do_without_torch() -> None:
    """At the top of a module; a function may import it when it comes to that."""
    for path in MODULES:
        top = ast.parse(path.read_text()).body
        names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
        heavy = [name for name in names if name.split(".")[0] == "torch"]
        assert not heavy or part_of(name_of(path)) not in WITHOUT_TORCH, f"{name_of(path)} imports {heavy}"


# --- what is found nowhere --------------------------------------------------------------------------------
def test_nothing_that_is_received_can_be_run() -> None:
    found = []
    for path in MODULES:
        name = name_of(path)
        found += [f"{name} imports {module}" for module in imports_of(path) if module in RUNS_WHAT_IT_READS]
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            runs = called in ("eval", "exec", "compile", "__import__") and name not in RUNS_THE_SCRIPT
            # torch.load reads tensors only, and runs nothing, if it is told so.
            runs |= called.endswith("torch.load") and "weights_only=True" not in ast.unparse(node)
            found += [f"{name} calls {called}"] if runs else []
    assert not found


def test_private_names_of_torch_are_in_their_module_only() -> None:
    """Another version of torch may change them: then there is one module to look at, with a test for each."""
    found = [
        f"{name_of(path)}:{line} has {private}"
        for path in MODULES
        if name_of(path) != "argosy.torch_private"
        for line, private in private_of_torch(path)
        if (name_of(path), private) not in NAMES_TORCH_IN_A_TEXT
    ]
    assert not found


def private_of_torch(path: Path) -> Iterator[tuple[int, str]]:
    """Imports of private names, private attributes of what is not ours, private names of torch in a text."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    # An object reads what another of its class has; but a tensor has a _version, and an operator a _schema.
    ours = {node.attr for node in nodes if isinstance(node, ast.Attribute) and is_own(node.value)}
    ours -= OF_AN_OPTIMIZER | {"_version", "_schema"}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [f"{base}{alias.name}" for alias in node.names]
            yield from ((node.lineno, name) for name in names if name.startswith("torch") and "._" in name)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_plain = is_own(node.value) or node.attr in ours or ast.unparse(node.value) in ("os", "sys")
            if not is_plain or node.attr in OF_AN_OPTIMIZER:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Name | ast.Constant):
            text = node.id if isinstance(node, ast.Name) else str(node.value)
            if text in OF_AN_OPTIMIZER or text.startswith("torch._"):
                yield node.lineno, text


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo",
        "from torch.utils._pytree import tree_map",
        "from torch.nn.modules.batchnorm import _NormBase",
        "torch._foreach_add_(a, b)",
        "aten = torch.ops.aten\naten._softmax",
        "tensor._version",
        "class A:\n  def f(self):\n    self._version = self._tensor._version",
        "class A:\n  _step_supports_amp_scaling = True",
        "getattr(optimizer, '_opt_called')",
        "self._optimizer_step_pre_hooks",
    ],
)
def test_a_private_name_of_torch_is_found(code: str, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(code)
    assert list(private_of_torch(tmp_path / "code.py"))


def test_modules_say_what_they_are() -> None:
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), f"{name_of(path)} has no docstring"
        assert path.stem not in NO_NAMES_LIKE_THESE, f"{name_of(path)} could be anything"


def test_what_is_large_is_large_for_a_reason() -> None:
    """A smell, and no wall: split what does two things, or say in LARGE why it does one."""
    large = set()
    for path in MODULES:
        text = path.read_text()
        large |= {name_of(path)} if len(text.splitlines()) > LINES_OF_A_FILE else set()
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.FunctionDef)
                and (node.end_lineno or 0) - node.lineno >= LINES_OF_A_FUNCTION
            ):
                large.add(f"{name_of(path)}.{node.name}")
    assert large == LARGE.keys()


# --- one name for one thing -------------------------------------------------------------------------------
def test_no_module_has_the_name_of_another() -> None:
    names = Counter(path.stem for path in MODULES if path.stem != "__init__")
    assert not [name for name, count in names.items() if count > 1]


def test_no_public_class_has_the_name_of_another() -> None:
    classes = Counter(
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in classes.items() if count > 1]
