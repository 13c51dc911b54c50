"""The manual is true: every block of README.md and docs/ runs, its tables are what the code says, its links lead on.

    python tests/test_docs.py --write

puts into the pages what the program prints and says now, where that differs; what it cannot put there it reports.

Each page has a project of its own, in which its blocks are followed in order, as a reader would:

* a block whose first line is `# name.yaml`, `# name.py` or `# name.toml` is that file;
* other Python runs, in one namespace a page; a text block right after it is what it prints;
* scenario files without a name, and lists of scenarios or of turns, run on `keyword` and must pass;
* console: what `chatflow-eval`, `pytest` and plain file commands print, where it is shown (`...` is any lines); a
  command that does not exit with 0 is followed by `echo $?`. A scripted server stands in for the provider.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

import chatflow_eval
from chatflow_eval import cli, conclusion, gate, incidents, loader, metrics, outcome, pytest_plugin, tables, trial
from chatflow_eval.checks import CHECKS
from chatflow_eval.scenario import AnswerPart, RequestPart
from chatflow_eval.targets.names import check_names
from chatflow_eval.testing import Reply, ScriptedServer

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
WRITE = "CHATFLOW_EVAL_WRITE_DOCS"
"""The environment variable that `--write` sets for the tests."""

SERVER = "http://127.0.0.1:8080/v1"
"""The address of a local model server in the pages; the scripted server answers there in the tests."""

SERVICE = "127.0.0.1:8000"
"""Where a page's own service listens; a free port stands in for it in the tests."""

FILE_COMMANDS = {"find", "grep", "ls", "mv", "sed"}

HEAD = "target: support.py:build\nscenarios:\n"
"""The head of the file in which a page's lists of scenarios stand."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    """Of the file, on which its text starts; counts from 1."""
    language: str
    text: str
    start: int
    """Of its text, in characters of the page."""

    @property
    def file(self) -> str | None:
        """The file it stands for, named by its first line."""
        named = re.match(r"# (\S+\.(?:py|toml|yaml))\n", self.text)
        return named[1] if named else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start(2)) + 1, found[1], found[2], found.start(2))
        for found in re.finditer(r"^```(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


# What varies from run to run.

_VARYING = (
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(-\d+)?"), "2026-11-30T12-00-00"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d"), "2026-11-30 12:00"),
    (re.compile(r"(less than )?\b\d+(\.\d+)?(e[+-]\d+)?\s(ms|s)\b|\b\d+\.\d+s\b"), "0.01 s"),
)


def steady(text: str) -> str:
    """The text without what varies, and with any white space alike: tables are as wide as their numbers."""
    text = " ".join(text.split())
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text


def agree(shown: str, said: str) -> bool:
    parts = [re.escape(steady(part)) for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)]
    return re.fullmatch(".*".join(parts), steady(said), re.DOTALL) is not None


# Following a page.


@dataclass(slots=True)
class Reader:
    """Follows a page block by block in a project of its own."""

    folder: Path
    server: str
    monkeypatch: pytest.MonkeyPatch
    service: str
    """Host and port."""
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "docs"})
    printed: str | None = None
    """By the Python block right before."""
    exit_code: int = 0
    mended: list[tuple[Block, str]] = field(default_factory=list)
    """Blocks and what they should say."""

    def follow(self, block: Block) -> None:
        printed, self.printed = self.printed, None
        match block.language:
            case "yaml":
                self._yaml(block)
            case "python":
                self._python(block)
            case "toml":
                tomllib.loads(block.text)
                self._write(block)
            case "console":
                self._console(block)
            case "text":
                if printed is not None:
                    self._mend(block, self._agreed(block, block.text, printed))
            case other:
                pytest.fail(f"{block}: nobody knows how to run {other or 'a block without a language'}")

    def _write(self, block: Block) -> Path:
        assert block.file, f"{block}: its first line names no file"
        path = self.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._here(block.text), encoding="utf-8")
        return path

    def _here(self, text: str) -> str:
        """The text with the addresses of this test."""
        return text.replace(SERVER, self.server).replace(SERVICE, self.service)

    def _yaml(self, block: Block) -> None:
        if block.file:
            self._write(block)
            return
        text = block.text
        if text.startswith("- user:"):
            text = f"- id: example\n  turns:\n{textwrap.indent(text, '    ')}"
        path = self.folder / "example.scenario.yaml"
        path.write_text(text if "scenarios:" in text else HEAD + text, encoding="utf-8")
        scenarios = loader.load([path])
        check_names(scenarios)
        path.unlink()
        for found in outcome.collect(trial.plan(scenarios, root=self.folder, models=["keyword"], repeats=1)):
            assert found.ok, f"{block}: {found.scenario} {found.status}: {found.why}"

    def _python(self, block: Block) -> None:
        if block.file:
            self._write(block)
            return
        code = compile("\n" * (block.line - 1) + self._here(block.text), block.page, "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, self.namespace)
        self.printed = out.getvalue()

    def _console(self, block: Block) -> None:
        told, failed = [], ""
        for command, shown in commands(block):
            assert not failed or command == "echo $?", (
                f"{block}: `{failed}` exited with {self.exit_code}; show `echo $?`"
            )
            said = self._run(command, block).replace(str(self.folder), "/home/me/swarm")
            said = said.replace(self.server, SERVER).replace(self.service, SERVICE)
            failed = command if self.exit_code else ""
            told.append(f"$ {command}\n{self._agreed(block, shown, said) if shown else ''}")
        assert not failed, f"{block}: `{failed}` exited with {self.exit_code}; show `echo $?`"
        self._mend(block, "".join(told))

    def _agreed(self, block: Block, shown: str, said: str) -> str:
        """What the page is to show: what it does, or what the program said; in part, a person has to choose it."""
        if agree(shown, said):
            return shown
        if os.environ.get(WRITE) and not re.search(r"^\.\.\.$", shown, re.MULTILINE):
            return said
        pytest.fail(f"{block} shows\n\n{shown}\nand the program says\n\n{said}\n(python tests/test_docs.py --write)")

    def _mend(self, block: Block, text: str) -> None:
        if text != block.text:
            self.mended.append((block, text))

    def _run(self, command: str, block: Block) -> str:
        if command == "echo $?":
            code, self.exit_code = self.exit_code, 0
            return f"{code}\n"
        if command.endswith(" &"):
            return ""  # a server, in whose place there is one already
        program, *arguments = shlex.split(command)
        if program == "make":
            return "".join(self._run(line, block) for line in recipe(*arguments))
        if program == "export":
            self.monkeypatch.setenv(*arguments[0].split("=", 1))
            return ""
        self._forget_modules()
        if program == "chatflow-eval":
            result = CliRunner().invoke(cli.cli, arguments, prog_name=program)
            self.exit_code, said = result.exit_code, result.output
        elif program == "pytest":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.exit_code = int(pytest.main(["-p", "no:cacheprovider", *arguments]))
            said = out.getvalue()
        elif program in FILE_COMMANDS:
            done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
            self.exit_code, said = done.returncode, done.stdout + done.stderr
        else:
            pytest.fail(f"{block}: nobody knows how to run `{command}`")
        return said

    def _forget_modules(self) -> None:
        """Every command of a reader's is a process of its own."""
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block and what is shown after each."""
    assert block.text.startswith("$ "), f"{block}: a console block starts with a command"
    for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        yield command, shown


def recipe(target: str) -> list[str]:
    """What a target of the Makefile does with the program, as commands."""
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)*)", rules, re.MULTILINE)
    assert found, f"the Makefile has no target {target}"
    lines = (line.strip().removeprefix("$(BIN)/") for line in found[1].splitlines())
    return [line for line in lines if line.startswith("chatflow-eval ")]


WORDS = {"refund": "billing", "charged": "billing", "crash": "tech"}


def answer(body: dict[str, Any]) -> Reply:
    """A model that knows who is responsible for some words, and goes there through Triage where it must."""
    user = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    offered = {tool["function"]["name"] for tool in body.get("tools", ())}
    for word, agent in WORDS.items():
        if word in user:
            for name in (f"transfer_to_{agent}", "transfer_to_triage"):
                if name in offered and not _asked_by(agent, body):
                    return Reply(calls=((name, {"reason": f"the user said {word}"}),))
    return Reply(text="Done.")


def _asked_by(agent: str, body: dict[str, Any]) -> bool:
    """True when the agent has the conversation already: its last transfer led to it."""
    results = [str(message["content"]) for message in body["messages"] if message["role"] == "tool"]
    return bool(results) and f'"transferred_to": "{agent.capitalize()}"' in results[-1]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ScriptedServer(answer) as scripted:
        yield scripted.url


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> Iterator[Reader]:
    for name in ("CI", "BUILD_NUMBER", "FORCE_COLOR", "PY_COLORS", "PYTEST_ADDOPTS", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("OPENAI_BASE_URL", server)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = '[tool.pytest.ini_options]\nasyncio_default_fixture_loop_scope = "function"\n'
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        service = f"127.0.0.1:{free.getsockname()[1]}"
    following = Reader(tmp_path, server, monkeypatch, service)
    yield following
    following._forget_modules()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_the_page_runs(page: Path, reader: Reader) -> None:
    if re.search(r"^\$ (make run|chatflow-eval .* scenarios/)", page.read_text(encoding="utf-8"), re.MULTILINE):
        for shipped in ("scenarios", "cassettes"):
            shutil.copytree(ROOT / shipped, shipped, ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks(page):
        reader.follow(block)
    if reader.mended:
        text = page.read_text(encoding="utf-8")
        for block, instead in reversed(reader.mended):
            text = text[: block.start] + instead + text[block.start + len(block.text) :]
        page.write_text(text, encoding="utf-8")


# What is written from the code.


def checks_table() -> str:
    rows = [f"| `{name}` | {_first_line(check.__doc__)} |" for name, check in CHECKS.items()]
    rows.append("| `incidents` | Those required are found, and of a failing kind none but those required or allowed. |")
    return "\n".join(["| key | passes when |", "|---|---|", *rows])


def numbers_table() -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in metrics.DEFINITIONS.items()]
    return "\n".join(["| in `report.json` | meaning |", "|---|---|", *rows])


def import_picture() -> str:
    rows = runpy.run_path(str(ROOT / "tests" / "test_architecture.py"))["ROWS"]
    picture = textwrap.fill(" > ".join(" ".join(row) for row in rows), 100)
    return f"```text\n{picture}\n```"


def modules_table() -> str:
    rows = runpy.run_path(str(ROOT / "tests" / "test_architecture.py"))["ROWS"]
    told = []
    for row in rows:
        for name in row:
            path = ROOT / "chatflow_eval" / f"{name}.py"
            paths = [path] if path.exists() else sorted(path.with_suffix("").rglob("*.py"))
            for each in paths:
                if doc := ast.get_docstring(ast.parse(each.read_text(encoding="utf-8"))):
                    label = ".".join(each.relative_to(ROOT / "chatflow_eval").with_suffix("").parts)
                    told.append(f"| `{label.removesuffix('.__init__')}` | {_first_line(doc)} |")
    return "\n".join(["| module | is |", "|---|---|", *told])


def _first_line(doc: str | None) -> str:
    assert doc
    return doc.strip().partition("\n")[0].replace("|", "\\|")


GENERATED: dict[str, Callable[[], str]] = {
    "checks": checks_table,
    "imports": import_picture,
    "modules": modules_table,
    "numbers": numbers_table,
}
_GENERATED = re.compile(r"(<!-- from the code: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_written_from_the_code_is_what_the_code_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    now = _GENERATED.sub(lambda found: f"{found[1]}\n{GENERATED[found[2]]()}\n\n{found[4]}", text)
    if os.environ.get(WRITE):
        page.write_text(now, encoding="utf-8")
    else:
        assert now == text, "python tests/test_docs.py --write"


def test_everything_that_is_written_from_the_code_is_in_some_page() -> None:
    found = {name for page in PAGES for _, name, *_ in _GENERATED.findall(page.read_text(encoding="utf-8"))}
    assert found == GENERATED.keys()


# What a person writes, and the code knows better.


def cells(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its head; backquotes left out."""
    text = (ROOT / page).read_text(encoding="utf-8")
    _, found, below = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    table = re.search(r"^\|.*\n\|[-|: ]+\n((?:\|.*\n)+)", below, re.MULTILINE)
    assert table, f"{page} has no table below {heading!r}"
    rows = (re.split(r"(?<!\\)\|", line)[1:-1] for line in table[1].splitlines())
    return [[cell.strip().replace("`", "") for cell in row] for row in rows]


def keys(page: str, heading: str) -> set[str]:
    """What the first column names, several in one cell parted by commas."""
    return {name for first, *_ in cells(page, heading) for name in first.split(", ")}


SCHEMA = loader.json_schema()


def _properties(shape: str) -> set[str]:
    found = SCHEMA["$defs"][shape]
    full = found["anyOf"][-1] if "anyOf" in found else found
    return set(full["properties"])


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("### Keys of a file", set(SCHEMA["properties"])),
        ("### Keys of a scenario", _properties("Scenario") - set(SCHEMA["properties"])),
        ("### Keys of a turn", _properties("Turn")),
        ("### Keys of an agent", _properties("AgentSpec")),
        ("### Keys of a tool", _properties("ToolSpec")),
        ("### Settings", _properties("SettingsSpec")),
        ("### Limits", _properties("Limits")),
    ],
)
def test_every_key_of_a_scenario_file_is_documented(heading: str, known: set[str]) -> None:
    assert keys("docs/scenarios.md", heading) == known


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("### Keys of a service", _properties("Service")),
        ("### What a service answers", set(get_args(AnswerPart))),
        ("### What a service is asked", set(get_args(RequestPart))),
    ],
)
def test_the_whole_contract_of_a_service_is_documented(heading: str, known: set[str]) -> None:
    assert keys("docs/targets.md", heading) == known


def test_every_kind_of_incident_is_documented_and_whether_it_fails() -> None:
    told = {kind: default for kind, default, _ in cells("docs/scenarios.md", "## Incidents")}
    assert told == {kind: "fails" if kind in incidents.FAILING else "warns" for kind in incidents.KINDS}


def _in_examples() -> str:
    return "\n".join(block.text for block in blocks(ROOT / "docs" / "scenarios.md") if block.language == "yaml")


@pytest.mark.parametrize("name", [*CHECKS, *incidents.KINDS])
def test_every_check_and_every_incident_has_an_example_that_runs(name: str) -> None:
    assert re.search(rf"\b{name}\b", _in_examples())


def test_every_rule_of_the_gate_is_documented() -> None:
    flags = {f"--{name.replace('_', '-')}" for name in (*gate.RULES, "baseline")}
    assert {flag.partition(" ")[0] for flag in keys("docs/report.md", "## The gate")} == flags


def test_every_column_of_the_tables_is_documented() -> None:
    told = {name: columns.split(", ") for name, _, columns in cells("docs/report.md", "## Tables and schemas")}
    assert told == {name: list(columns) for name, columns in tables.COLUMNS.items()}


def test_every_option_of_the_pytest_plugin_is_documented() -> None:
    options = re.findall(r'addoption\(\s*"(--[\w-]+)"', inspect.getsource(pytest_plugin))
    assert {option.partition(" ")[0] for option in keys("docs/pytest.md", "## Scenario files as tests")} == set(options)


def test_every_assertion_is_documented() -> None:
    told = {row[0].partition("(")[0] for row in cells("docs/pytest.md", "## Conversations in plain tests")}
    assert told == {name for name in chatflow_eval.__all__ if name.startswith("assert_")}


def test_the_steps_of_a_scenario_are_functions_of_the_package() -> None:
    for _, told, _ in cells("docs/architecture.md", "## How one scenario flows"):
        for name in re.findall(r"\b[a-z]\w+(?:\.\w+)+", told):
            assert pkgutil.resolve_name(f"chatflow_eval.{name}")


def test_every_exit_code_is_documented() -> None:
    codes = {getattr(conclusion, name) for name in dir(conclusion) if type(getattr(conclusion, name)) is int}
    assert {int(code) for code, *_ in cells("README.md", "### Exit codes")} == codes


def test_every_command_shows_its_help() -> None:
    shown = {command for block in blocks(ROOT / "docs" / "cli.md") for command, output in commands(block) if output}
    assert {f"chatflow-eval {name} --help" for name in cli.cli.commands} <= shown


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in _anchors(target), f"{page.name} links to {link}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", PAGES[0].read_text(encoding="utf-8")))
    assert linked == {page.relative_to(ROOT).as_posix() for page in PAGES[1:]}


VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"


def test_the_changelog_keeps_its_form_and_ends_at_the_version_of_the_package() -> None:
    """Keep a Changelog 1.1.0: `## [Unreleased]`, then `## [version] - date`, the newest first."""
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    released = [re.fullmatch(rf"\[({VERSION})\] - \d{{4}}-\d\d-\d\d", heading) for heading in headings[1:]]
    assert all(released), headings
    assert re.fullmatch(VERSION, chatflow_eval.__version__)
    assert [found[1] for found in released[:1] if found] in ([], [chatflow_eval.__version__])


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    command = [sys.executable, "-m", "pytest", "-q", __file__]
    sys.exit(subprocess.run(command, env={**os.environ, WRITE: "1"}, check=False).returncode)
