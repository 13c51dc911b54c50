"""Recorded exchanges of one trial, as a file: read, written, and named.

The file is a vcrpy cassette (format version 1), so any vcrpy tool can read it. What we know beyond HTTP (who asked, in
which turn, whose trial it is, what the tools returned) stands under `metadata` -> `chatflow-eval`. This module never
touches the network: `recorder` does.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chatflow_eval.errors import CassetteDamaged, CassetteError, CassetteMissing
from chatflow_eval.scrub import scrub_body, scrub_json, scrub_text, scrub_uri, surviving_secret
from chatflow_runtime.types import Json

FORMAT = 2
"""Version of what we add under `metadata`: 2 has a digest; a reader refuses newer ones."""

OURS = "chatflow-eval"
"""The key under `metadata` of what we add."""

SUFFIXES = (".json", ".yaml", ".yml")

_VCR_VERSION = 1
_TOP = frozenset({"version", "interactions", "metadata"})
_KEPT_HEADERS = ("location", "link", "x-agent")
"""Of an answer, besides its content type: what clients follow to further requests, and who answered."""
_RESERVED_NAMES = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)})
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One HTTP request and its answer, scrubbed, with who asked and in which turn where that is known."""

    method: str
    uri: str
    body: Json
    """The parsed JSON body, or the text where it is no JSON; `None` without a body."""
    request_type: str = "application/json"
    """Content type of the body."""
    status: int
    reason: str = ""
    content_type: str = "application/json"
    """Content type of the answer."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of the answer that replaying needs."""
    answer: str | bytes = ""
    """The answer's body; bytes where it is no text."""
    agent: str | None = None
    turn: int | None = None
    aside: bool = False
    """Asked by something else than the runtime's engine: a tool, a factory, a framework's own client."""

    @property
    def is_chat(self) -> bool:
        """True for a chat-completions exchange with a JSON answer, which replays without a provider's client."""
        return (
            self.status == 200
            and not self.aside
            and isinstance(self.body, dict)
            and isinstance(self.body.get("messages"), list)
            and not self.body.get("stream")
            and urlsplit(self.uri).path.endswith("/chat/completions")
            and isinstance(self.answer, str)
            and '"choices"' in self.answer
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExchange:
    """One call of a domain tool and what came of it, scrubbed."""

    agent: str
    turn: int | None
    tool: str
    arguments: Json
    result: Json = None
    error: str | None = None
    """The exception's class and text, where the tool raised."""
    handoff: dict[str, Json] | None = None
    """The wish to hand off that the tool returned: `target`, `reason`, `context`."""
    context: dict[str, Json] | None = None
    """What the call changed in the session's context."""
    dropped: tuple[str, ...] = ()
    """What the call took out of it."""


REFERENCE = "chatflow"
"""The target whose name goes without saying in a recording: the reference runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose recording it is: the trial, and when it was made (ISO 8601, UTC)."""

    file: str
    scenario: str
    model: str
    repeat: int
    recorded: str = ""
    target: str = REFERENCE
    """What the agents ran on."""


@dataclass(frozen=True, slots=True)
class Cassette:
    """The exchanges of one trial, in the order recorded."""

    path: Path
    exchanges: tuple[Exchange, ...]
    tools: tuple[ToolExchange, ...] | None = None
    """`None`: recorded without what the tools returned."""
    origin: Origin | None = None
    """`None`: written by another tool."""


def read(path: Path, *, rerecord: str = "chatflow-eval record", edited: bool = False) -> Cassette:
    """The cassette at `path`, JSON or YAML by its ending; with `edited`, whatever was changed in it by hand.

    Raises:
        CassetteMissing: there is no such file.
        CassetteDamaged: it is empty, cut, merged by hand, changed since it was written, or not a cassette.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise CassetteMissing(f"{shown(path)}: nothing recorded; record it with: {rerecord}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, f"cannot be read: {error}", rerecord) from None
    try:
        return _cassette(path, _parse(path, text), edited=edited)
    except _NotWhole as error:
        raise _damaged(path, str(error), rerecord) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        problem = f"not a whole cassette: {type(error).__name__}: {error}"
        raise _damaged(path, problem, rerecord) from None


def write(cassette: Cassette) -> None:
    """Writes the cassette in one step: the old file stays until the new one is whole on the disk.

    Raises:
        CassetteError: a secret survived scrubbing, or the folder cannot be written.
    """
    who = [_about(exchange) for exchange in cassette.exchanges]
    ours: dict[str, Any] = {"format": FORMAT}
    if cassette.origin is not None:
        told = asdict(cassette.origin)
        ours["origin"] = {name: value for name, value in told.items() if (name, value) != ("target", REFERENCE)}
    ours |= {"count": len(who), "exchanges": who}
    if cassette.tools is not None:
        ours["tools"] = [_sparse(tool) for tool in cassette.tools]
    interactions = [_interaction(exchange) for exchange in cassette.exchanges]
    ours["digest"] = _digest(interactions, ours)
    data = {"version": _VCR_VERSION, "interactions": interactions, "metadata": {OURS: ours}}
    text = _text_of(cassette.path, data)
    answers = (exchange.answer for exchange in cassette.exchanges)
    texts = (text, *(answer.decode("latin-1") for answer in answers if isinstance(answer, bytes)))
    secret = next((found for each in texts if (found := surviving_secret(each))), None)
    if secret:
        raise CassetteError(f"{shown(cassette.path)}: not written, it would hold {secret}")
    try:
        _replace(cassette.path, text)
    except OSError as error:
        raise CassetteError(f"{shown(cassette.path)}: cannot be written: {error.strerror or error}") from None


def path_for(root: Path, file: str, scenario: str, model: str, repeat: int, *, framework: str = REFERENCE) -> Path:
    """Where a trial's cassette lies, safe on every system.

    `cassettes/<file>/<scenario id>/[<framework>.]<model>[.<repeat>].json`; the reference runtime goes without saying.
    """
    stem = re.sub(r"(\.scenario)?\.(ya?ml|py)$", "", file)
    folders = [safe_name(part, fold_case=False) for part in stem.split("/") if part not in ("", ".", "..")]
    on = "" if framework == REFERENCE else f"{framework}."
    name = on + safe_name(model) + (f".{repeat}" if repeat > 1 else "")
    return root.joinpath("cassettes", *folders, safe_name(scenario), f"{name}.json")


def existing(path: Path) -> Path:
    """The recording at this path in JSON, or beside it in YAML; the path itself where there is none."""
    if path.exists():
        return path
    return next((other for suffix in SUFFIXES[1:] if (other := path.with_suffix(suffix)).exists()), path)


def safe_name(text: str, *, fold_case: bool = True) -> str:
    """A file name for any text: same text same name, other text other name, also where case is ignored."""
    kept = re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._")[:_LONGEST_NAME]
    reserved = kept.partition(".")[0].lower() in _RESERVED_NAMES
    # `claude-3.5` is no fifth repeat of `claude-3`, and `Refund` is a file of its own where case is ignored.
    ambiguous = re.search(r"\.\d+$", kept) or (fold_case and kept != kept.lower())
    if kept and kept == text and not reserved and not ambiguous:
        return kept
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{kept}-{digest}" if kept else digest


def exchange_of(
    *,
    method: str,
    uri: str,
    body: bytes | Json,
    request_type: str = "",
    status: int,
    reason: str,
    headers: Mapping[str, Iterable[str]],
    answer: bytes,
    agent: str | None,
    turn: int | None,
    aside: bool = False,
) -> Exchange:
    """One exchange as it went over the wire, scrubbed; of the headers only what replaying needs is kept."""
    given = _lowered(headers)
    parsed = json_or_text(body)
    return Exchange(
        method=method.upper(),
        uri=scrub_uri(uri),
        body=scrub_body(parsed) if isinstance(parsed, str) else scrub_json(parsed),
        request_type=request_type or ("application/json" if isinstance(parsed, dict | list) else ""),
        status=status,
        reason=scrub_text(reason),
        content_type=given.get("content-type", ""),
        headers=tuple((name, scrub_uri(given[name])) for name in _KEPT_HEADERS if name in given),
        answer=_scrub_answer(answer),
        agent=agent,
        turn=turn,
        aside=aside,
    )


def json_or_text(body: bytes | Json) -> Json:
    """The JSON object or array that a body holds, else its text; `None` for none, a digest for what is no text.

    Raises:
        TypeError: it is an object that only its client knows how to send.
    """
    if not isinstance(body, bytes | str):
        # aiohttp tells of a JSON body before it is made into text.
        plain: Json = json.loads(json.dumps(body)) if body else None
        return plain
    text = _decoded(body) if isinstance(body, bytes) else body
    if not text:
        return None
    try:
        parsed: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # A JSON string or number would not be told from a plain text when it is written again.
    return parsed if isinstance(parsed, dict | list) else text


def _decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return f"[{len(body)} bytes, sha256 {hashlib.sha256(body).hexdigest()}]"


def shown(path: Path) -> str:
    """The path as people read it: from the current folder where it lies below."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


class _NotWhole(Exception):
    """What is wrong with a file, in words."""


def _parse(path: Path, text: str) -> dict[str, Any]:
    if not text.strip():
        raise _NotWhole("the file is empty")
    if "<<<<<<< " in text or ">>>>>>> " in text:
        for number, line in enumerate(text.split("\n"), 1):
            if line.startswith(("<<<<<<< ", ">>>>>>> ")):
                raise _NotWhole(f"line {number}: a merge conflict was left in it")
    data = _parse_json(text) if path.suffix == ".json" else _parse_yaml(text)
    if not isinstance(data, dict) or not isinstance(data.get("interactions"), list):
        raise _NotWhole("no list of interactions in it")
    if unknown := data.keys() - _TOP:
        raise _NotWhole(f"it has {sorted(map(str, unknown))[0]!r}, expected {', '.join(sorted(_TOP))}")
    if data.get("version", _VCR_VERSION) != _VCR_VERSION:
        raise _NotWhole(f"version {data['version']} of vcrpy's format, this chatflow-eval reads {_VCR_VERSION}")
    return data


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _NotWhole(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise _NotWhole("nested too deeply") from None


def _parse_yaml(text: str) -> Any:
    import yaml

    try:
        try:
            data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.constructor.ConstructorError:
            # vcrpy has words of its own for files and iterators that were sent.
            from vcr.serializers import yamlserializer

            data = yamlserializer.deserialize(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        raise _NotWhole(f"{place}not YAML: {getattr(error, 'problem', None) or error}") from None
    # What is read costs no more than it is long, unless aliases make it many times as much.
    if _weight(data, len(text)) > len(text):
        raise _NotWhole("its aliases stand for more than the file holds")
    return data


def _weight(value: Any, most: int) -> int:
    """How many values there are, counted until there are too many."""
    waiting, count = [value], 0
    while waiting and count <= most:
        item = waiting.pop()
        count += 1
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
    return count


def _cassette(path: Path, data: dict[str, Any], *, edited: bool) -> Cassette:
    interactions = data["interactions"]
    metadata = data.get("metadata") or {}
    ours = metadata.get(OURS)
    if ours is None:
        if any(isinstance(value, dict) and {"count", "digest"} & value.keys() for value in metadata.values()):
            raise _NotWhole(f"its metadata lacks the key {OURS!r}")
        return Cassette(path, tuple(_exchange(interaction, {}) for interaction in interactions))
    if ours["format"] > FORMAT:
        raise _NotWhole(f"written by a newer chatflow-eval (format {ours['format']}, this one reads {FORMAT})")
    who = ours["exchanges"]
    if not len(who) == len(interactions) == ours["count"]:
        raise _NotWhole(f"{ours['count']} interactions were recorded, {len(interactions)} are left")
    has_digest = ours["format"] > 1 or "digest" in ours
    if has_digest and not edited and ours["digest"] != _digest(interactions, ours):
        raise _NotWhole(
            "changed since it was recorded (if that was meant: chatflow-eval cassettes verify --accept FILE)"
        )
    exchanges = tuple(_exchange(*pair) for pair in zip(interactions, who, strict=True))
    tools = tuple(ToolExchange(**_tuples(tool)) for tool in ours["tools"]) if "tools" in ours else None
    return Cassette(path, exchanges, tools, Origin(**ours["origin"]) if "origin" in ours else None)


def _exchange(interaction: dict[str, Any], about: dict[str, Any]) -> Exchange:
    request, response = interaction["request"], interaction["response"]
    if "status_code" in response:  # as vcrpy wrote httpx's answers before its version 8.2
        response = {
            "status": {"code": response["status_code"], "message": ""},
            "headers": response["headers"],
            "body": {"string": response["content"]},
        }
    headers = _lowered(response["headers"] or {})
    answer = _answer(response["body"].get("string"), headers, is_binary=about.get("binary", False))
    return Exchange(
        method=str(request["method"]).upper(),
        uri=str(request["uri"]),
        body=json_or_text(_sent(request["body"])),
        request_type=_lowered(request.get("headers") or {}).get("content-type", ""),
        status=int(response["status"]["code"]),
        reason=str(response["status"]["message"] or ""),
        content_type=headers.get("content-type", ""),
        headers=tuple((name, headers[name]) for name in _KEPT_HEADERS if name in headers),
        answer=answer,
        agent=about.get("agent"),
        turn=about.get("turn"),
        aside=about.get("aside", False),
    )


def _sent(body: Any) -> Any:
    """A request's body as vcrpy keeps it: text, bytes, data, an open file, or what is left of an iterator."""
    if hasattr(body, "read"):
        return body.read()
    return b"".join(body) if hasattr(body, "__next__") else body


def _answer(body: str | bytes | None, headers: Mapping[str, str], *, is_binary: bool) -> str | bytes:
    if is_binary:
        return base64.b64decode(body or "", validate=True)
    if not isinstance(body, bytes):
        return str(body or "")
    plain = _unpacked(body, headers.get("content-encoding", ""))
    try:
        return plain.decode("utf-8")
    except UnicodeDecodeError:
        return plain


def _unpacked(body: bytes, encoding: str) -> bytes:
    """The body as it was before it was compressed; vcrpy keeps it compressed unless told otherwise."""
    if encoding in ("gzip", "x-gzip", "deflate"):
        try:
            return zlib.decompress(body, zlib.MAX_WBITS | (16 if "gzip" in encoding else 0))
        except zlib.error:
            return body  # an answer that vcrpy had decompressed and whose header it left
    if encoding == "br":
        try:
            brotli = importlib.import_module("brotli")
        except ImportError:
            raise _NotWhole("an answer is compressed with brotli; install brotli to read it") from None
        try:
            return bytes(brotli.decompress(body))
        except brotli.error:
            return body
    return body


def _interaction(exchange: Exchange) -> dict[str, Any]:
    answer = exchange.answer
    sent = {"content-type": [exchange.request_type]} if exchange.request_type else {}
    got = {"content-type": [exchange.content_type]} if exchange.content_type else {}
    return {
        "request": {
            "method": exchange.method,
            "uri": exchange.uri,
            "body": exchange.body if isinstance(exchange.body, str | None) else _dump(exchange.body),
            "headers": sent,
        },
        "response": {
            "status": {"code": exchange.status, "message": exchange.reason},
            "headers": got | {name: [value] for name, value in exchange.headers},
            "body": {"string": base64.b64encode(answer).decode() if isinstance(answer, bytes) else answer},
        },
    }


def _about(exchange: Exchange) -> dict[str, Any]:
    flags = {"aside": exchange.aside, "binary": isinstance(exchange.answer, bytes)}
    return {"agent": exchange.agent, "turn": exchange.turn} | {name: True for name, is_set in flags.items() if is_set}


def _sparse(tool: ToolExchange) -> dict[str, Any]:
    """What is said of a tool's call, and nothing that goes without saying."""
    return {name: value for name, value in asdict(tool).items() if value not in (None, ()) or name == "arguments"}


def _tuples(tool: dict[str, Any]) -> dict[str, Any]:
    return {"turn": None, **tool, "dropped": tuple(tool.get("dropped", ()))}


def _digest(interactions: list[Any], ours: Mapping[str, Any]) -> str:
    """What tells whether anything that is read has changed; white space and the order of keys may."""
    told: list[Any] = [{key: value for key, value in ours.items() if key != "digest"}]
    texts: list[Any] = []
    for interaction in interactions:
        request, response = interaction["request"], interaction["response"]
        told.append([request["method"], request["headers"], response["status"], response["headers"]])
        # Long texts go in as they are: escaping them again would take most of the time.
        texts += (request["uri"], request["body"], response["body"]["string"])
    text = "\0".join([_SORTED.encode(told), *map(str, texts)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


_SORTED = json.JSONEncoder(sort_keys=True, default=str)


def _text_of(path: Path, data: dict[str, Any]) -> str:
    if path.suffix in (".yaml", ".yml"):
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        written: str = yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
        return written
    return _dump(data, indent=1) + "\n"


def _damaged(path: Path, problem: str, rerecord: str) -> CassetteDamaged:
    return CassetteDamaged(f"{shown(path)}: damaged: {problem}; restore it, or record again with: {rerecord}")


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _scrub_answer(body: bytes) -> str | bytes:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return body
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return scrub_body(text)
    scrubbed = scrub_json(parsed)
    return text if scrubbed == parsed else _dump(scrubbed)


def _lowered(headers: Mapping[str, Any]) -> dict[str, str]:
    """Names in lower case, and the first value of each."""
    return {str(name).lower(): _first(value) for name, value in headers.items()}


def _first(value: str | Iterable[str] | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return str(next(iter(value), ""))


def _dump(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # of half a character
        return json.dumps(value, indent=indent)
    return text
