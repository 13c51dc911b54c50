"""Libraries from npm that the HTML report holds: fetch them as `vendored.json` pins them, or check that they are whole.

python tools/vendor.py verify
python tools/vendor.py fetch [NAME VERSION]
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "chatflow_eval" / "templates" / "vendor"
PINS = "vendored.json"

_ELSEWHERE = re.compile(rb"^(//# sourceMappingURL=.*|/\*! For license information please see .*\*/)$", re.MULTILINE)
"""Lines that point to files that the page does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One package from npm, and which of its files are held here."""

    name: str
    version: str
    license: str
    home: str
    integrity: str
    """Of the package as npm has it: `sha512-` and base64."""
    files: Mapping[str, str]
    """Name here to the name in the package."""
    sha256: Mapping[str, str]
    """Name here to the checksum of the file here."""


class VendorError(Exception):
    """What is held, or what npm gave, is not what is pinned."""


def pinned(folder: Path = FOLDER) -> tuple[Library, ...]:
    """The libraries of `vendored.json`."""
    return tuple(Library(**row) for row in json.loads((folder / PINS).read_text(encoding="utf-8")))


def problems(folder: Path = FOLDER) -> Iterator[str]:
    """What is missing, altered, or held without being pinned, a sentence each."""
    known = {PINS}
    for library in pinned(folder):
        for name in library.files:
            known.add(name)
            path = folder / name
            if not path.is_file():
                yield f"{name}: missing, of {library.name} {library.version}"
            elif (found := hashlib.sha256(path.read_bytes()).hexdigest()) != library.sha256.get(name):
                yield f"{name}: sha256 {found}, pinned is {library.sha256.get(name)}"
    yield from (f"{path.name}: not pinned" for path in sorted(folder.iterdir()) if path.name not in known)


def fetch(library: Library, folder: Path = FOLDER, *, pin: bool = False) -> Library:
    """Write the library's files as npm has them; raises `VendorError` when its package is not the pinned one.

    `pin`: take the package for what is to be pinned from now on.
    """
    with tempfile.TemporaryDirectory() as place:
        command = ["npm", "pack", f"{library.name}@{library.version}", "--silent", "--pack-destination", place]
        subprocess.run(command, check=True, capture_output=True)
        package = next(Path(place).glob("*.tgz"))
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
        if integrity != library.integrity and not pin:
            raise VendorError(f"{library.name} {library.version}: {integrity}, pinned is {library.integrity}")
        with tarfile.open(package) as archive:
            contents = {name: _content(archive, inside, library) for name, inside in library.files.items()}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if sums != library.sha256 and not pin:
        raise VendorError(f"{library.name} {library.version}: {sums}, pinned is {library.sha256}")
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return replace(library, integrity=integrity, sha256=sums)


def _content(archive: tarfile.TarFile, name: str, library: Library) -> bytes:
    """The file as npm has it; a script with its licence on top, which has to go wherever the page goes."""
    content = _read(archive, name)
    if not name.endswith(".js"):
        return content
    licence = _read(archive, "LICENSE").strip()
    head = f"/*! {library.name} {library.version}, {library.license}, {library.home}\n\n".encode()
    return head + licence + b"\n*/\n" + _ELSEWHERE.sub(b"", content).strip() + b"\n"


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"package/{name}")
    if file is None:
        raise VendorError(f"{name}: no file of the package")
    return file.read()


def main(arguments: Sequence[str]) -> int:
    """Exit 1 when something is not as pinned, 2 for wrong arguments."""
    match arguments:
        case ["verify"]:
            found = list(problems())
            print("\n".join(found) or f"{len(pinned())} libraries are as pinned")
            return bool(found)
        case ["fetch"]:
            for library in pinned():
                fetch(library)
            return main(["verify"])
        case ["fetch", name, version] if name in {library.name for library in pinned()}:
            libraries = [
                fetch(replace(library, version=version), pin=True) if library.name == name else library
                for library in pinned()
            ]
            text = json.dumps([asdict(library) for library in libraries], indent=2)
            (FOLDER / PINS).write_text(f"{text}\n", encoding="utf-8")
            return main(["verify"])
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
