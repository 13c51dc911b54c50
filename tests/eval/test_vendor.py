"""What the page holds of others: as npm has it, pinned, licensed, and nothing that a strict page would refuse."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tools import vendor


def test_everything_held_is_what_was_pinned() -> None:
    assert list(vendor.problems()) == []


@pytest.mark.parametrize("library", vendor.pinned(), ids=lambda library: library.name)
def test_every_library_has_its_licence_beside_it(library: vendor.Library) -> None:
    assert library.license == "MIT"
    assert library.integrity.startswith("sha512-")
    (licence,) = [name for name in library.files if name.endswith(".LICENSE.txt")]
    assert "Permission is hereby granted" in (vendor.FOLDER / licence).read_text(encoding="utf-8")


@pytest.mark.parametrize("script", sorted(vendor.FOLDER.glob("*.js")), ids=lambda path: path.name)
def test_a_script_carries_its_licence_and_runs_in_a_strict_page(script: Path) -> None:
    """It is put into the page as it is: nothing may end its element, make code of text, or ask for another file."""
    text = script.read_text(encoding="utf-8")
    assert text.startswith("/*! ")
    assert "Permission is hereby granted" in text
    for refused in ("</script", "<!--", "eval(", "new Function", "sourceMappingURL", "fetch(", "XMLHttpRequest"):
        assert refused not in text


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A folder with one library of one script."""
    folder = tmp_path / "vendor"
    folder.mkdir()
    package = tmp_path / "thing.tgz"
    with tarfile.open(package, "w:gz") as archive:
        for name, content in (
            ("LICENSE", b"Do as you like.\n"),
            ("thing.js", b"go();\n//# sourceMappingURL=thing.js.map\n"),
        ):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    digest = hashlib.sha512(package.read_bytes()).digest()
    row = {
        "name": "thing",
        "version": "1.0.0",
        "license": "MIT",
        "home": "https://example.org",
        "integrity": "sha512-" + base64.b64encode(digest).decode(),
        "files": {"thing.js": "thing.js", "thing.LICENSE.txt": "LICENSE"},
        "sha256": {},
    }
    (folder / vendor.PINS).write_text(json.dumps([row]), encoding="utf-8")
    return folder


@pytest.fixture
def npm(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """npm without a network: it packs the one library there is."""

    def run(command: list[str], **_: Any) -> None:
        assert command[:3] == ["npm", "pack", "thing@1.0.0"]
        (Path(command[-1]) / "thing-1.0.0.tgz").write_bytes((held.parent / "thing.tgz").read_bytes())

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.usefixtures("npm")
def test_a_script_is_fetched_with_its_licence_on_top(held: Path) -> None:
    (library,) = vendor.pinned(held)
    fetched = vendor.fetch(library, held, pin=True)
    text = (held / "thing.js").read_text(encoding="utf-8")
    assert text == "/*! thing 1.0.0, MIT, https://example.org\n\nDo as you like.\n*/\ngo();\n"
    assert fetched.sha256["thing.js"] == hashlib.sha256(text.encode()).hexdigest()
    assert fetched.integrity == library.integrity
    assert vendor.fetch(fetched, held) == fetched


@pytest.mark.usefixtures("npm")
def test_another_package_than_the_pinned_one_is_refused(held: Path) -> None:
    (library,) = vendor.pinned(held)
    with pytest.raises(vendor.VendorError, match=r"thing 1\.0\.0"):
        vendor.fetch(library, held)
    other = vendor.Library(**{**json.loads((held / vendor.PINS).read_text())[0], "integrity": "sha512-other"})
    with pytest.raises(vendor.VendorError, match="pinned is sha512-other"):
        vendor.fetch(other, held)
    assert not (held / "thing.js").exists()


def test_what_is_missing_altered_or_unknown_is_told(held: Path) -> None:
    (held / "thing.js").write_text("stop();", encoding="utf-8")
    (held / "stray.js").write_text("", encoding="utf-8")
    altered, missing, stray = vendor.problems(held)
    assert altered.startswith("thing.js: sha256 ")
    assert missing == "thing.LICENSE.txt: missing, of thing 1.0.0"
    assert stray == "stray.js: not pinned"


@pytest.mark.parametrize("arguments", [[], ["fetch", "unknown", "1"], ["verify", "all"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    assert vendor.main(arguments) == 2


def test_verify_says_how_many_are_as_pinned(capsys: pytest.CaptureFixture[str]) -> None:
    assert vendor.main(["verify"]) == 0
    assert capsys.readouterr().out == f"{len(vendor.pinned())} libraries are as pinned\n"
