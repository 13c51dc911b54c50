"""Recorded HTTP exchanges of one trial: read, written, found, and a miss explained.

The file is a vcrpy cassette (format version 1), so any vcrpy tool can read it. What we know beyond HTTP (who asked, in
which turn) stands under `metadata` -> `chatflow-eval`. This module never touches the network: `recorder` does.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chatflow_eval.errors import CassetteDamaged, CassetteError, CassetteMismatch, CassetteMissing
from chatflow_eval.scrub import scrub_json, scrub_text, scrub_uri, surviving_secret
from chatflow_runtime.types import Json

FORMAT = 1
"""Version of what we add under `metadata`; a reader refuses newer ones."""

_VCR_VERSION = 1
_KEPT_HEADERS = frozenset({"content-type", "retry-after"})
_RESERVED_NAMES = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)})
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One HTTP request and its answer, scrubbed, with who asked and in which turn where that is known."""

    method: str
    uri: str
    body: Json
    """The parsed JSON body, or the text where it is no JSON; `None` without a body."""
    status: int
    reason: str = ""
    content_type: str = "application/json"
    answer: str = ""
    """The response's body as text."""
    agent: str | None = None
    turn: int | None = None

    @property
    def is_chat(self) -> bool:
        """True for a chat-completions exchange with a JSON answer, which replays without a provider's client."""
        return (
            self.status == 200
            and isinstance(self.body, dict)
            and isinstance(self.body.get("messages"), list)
            and not self.body.get("stream")
            and urlsplit(self.uri).path.endswith("/chat/completions")
        )


@dataclass(frozen=True, slots=True)
class Cassette:
    """The exchanges of one trial, in the order recorded."""

    path: Path
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a replaying client asks for: an HTTP request, or a chat request before any client saw it (`uri` empty)."""

    body: Json
    method: str = "POST"
    uri: str = ""
    agent: str | None = None
    turn: int | None = None


@dataclass(slots=True)
class Player:
    """Replays one cassette for one trial: each exchange once, identical requests in the order recorded."""

    cassette: Cassette
    rerecord: str
    """The command that records this trial again, for messages."""
    played: set[int] = field(default_factory=set)
    _http: dict[str, list[int]] = field(default_factory=dict)
    _chat: dict[str, list[int]] = field(default_factory=dict)
    """Where each request stands in the cassette; filled when first asked for, as nearly no trial asks both ways."""

    @property
    def only_chat(self) -> bool:
        """True when every exchange can be replayed from a chat request alone."""
        return all(exchange.is_chat for exchange in self.cassette.exchanges)

    @property
    def unplayed(self) -> int:
        """How many recorded exchanges nobody has asked for."""
        return len(self.cassette.exchanges) - len(self.played)

    def play(self, asked: Asked) -> Exchange:
        """The next exchange recorded for this HTTP request.

        Raises:
            CassetteMismatch: nothing (more) was recorded for it.
        """
        if not self._http:
            for index, exchange in enumerate(self.cassette.exchanges):
                self._http.setdefault(_http_key(exchange.method, exchange.uri, exchange.body), []).append(index)
        return self._next(self._http.get(_http_key(asked.method, asked.uri, asked.body), []), asked)

    def play_chat(self, asked: Asked) -> Exchange:
        """The next exchange recorded for this canonical chat request, whatever URL it went to.

        Raises:
            CassetteMismatch: nothing (more) was recorded for it.
        """
        if not self._chat:
            for index, exchange in enumerate(self.cassette.exchanges):
                if exchange.is_chat:
                    self._chat.setdefault(_body_key(_without_model(exchange.body)), []).append(index)
        indices = self._chat.get(_body_key(_without_model(asked.body)), [])
        return self._next([i for i in indices if _same_model(asked.body, self.cassette.exchanges[i].body)], asked)

    def _next(self, indices: list[int], asked: Asked) -> Exchange:
        for index in indices:
            if index not in self.played:
                self.played.add(index)
                return self.cassette.exchanges[index]
        raise self._explain(asked, recorded=len(indices))

    def _explain(self, asked: Asked, *, recorded: int) -> CassetteMismatch:
        agent, turn = asked.agent or "unknown", asked.turn or "unknown"
        edit = None
        nearest = self._nearest(asked)
        if recorded:
            problem = f"recorded {recorded}, asked {recorded + 1}"
        elif nearest is None:
            problem = f"all {len(self.cassette.exchanges)} recorded exchanges were replayed already"
        else:
            difference = _chat_difference(nearest.body, asked.body) or _place_difference(nearest, asked)
            edit = f"agent {agent}: {difference}"
            problem = f"stale: {difference}"
        where = f"{_shown(self.cassette.path)}; record again with: {self.rerecord}"
        return CassetteMismatch(f"agent {agent}, turn {turn}: {problem}; in {where}", edit=edit)

    def _nearest(self, asked: Asked) -> Exchange | None:
        waiting = [exchange for i, exchange in enumerate(self.cassette.exchanges) if i not in self.played]
        same_asker = [exchange for exchange in waiting if exchange.agent == asked.agent and exchange.turn == asked.turn]
        return next(iter(same_asker or waiting), None)


def read(path: Path, *, rerecord: str = "chatflow-eval record") -> Cassette:
    """The cassette at `path`, JSON or YAML by its ending.

    Raises:
        CassetteMissing: there is no such file.
        CassetteDamaged: it is empty, cut, merged by hand, or not a cassette; names the place.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise CassetteMissing(f"{_shown(path)}: nothing recorded; record it with: {rerecord}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CassetteDamaged(f"{_shown(path)}: cannot be read: {error}") from None
    if not text.strip():
        raise _damaged(path, "the file is empty", rerecord)
    try:
        data = _parse(path, text)
    except _NotParsed as error:
        raise _damaged(path, str(error), rerecord) from None
    try:
        return Cassette(path, tuple(_exchanges(data)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"not a whole cassette: {type(error).__name__}: {error}", rerecord) from None


def write(cassette: Cassette) -> None:
    """Writes the cassette in one step: the old file stays until the new one is whole on the disk.

    Raises:
        CassetteError: a secret survived scrubbing, or the folder cannot be written.
    """
    interactions = [
        {
            "request": {
                "method": exchange.method,
                "uri": exchange.uri,
                "body": exchange.body if isinstance(exchange.body, str | None) else _dump(exchange.body),
                "headers": {"content-type": ["application/json"]} if exchange.body is not None else {},
            },
            "response": {
                "status": {"code": exchange.status, "message": exchange.reason},
                "headers": {"content-type": [exchange.content_type]},
                "body": {"string": exchange.answer},
            },
        }
        for exchange in cassette.exchanges
    ]
    who = [{"agent": exchange.agent, "turn": exchange.turn} for exchange in cassette.exchanges]
    metadata = {"chatflow-eval": {"format": FORMAT, "count": len(who), "exchanges": who}}
    data = {"version": _VCR_VERSION, "interactions": interactions, "metadata": metadata}
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    secret = surviving_secret(text)
    if secret:
        raise CassetteError(f"{_shown(cassette.path)}: not written, it would hold {secret}")
    try:
        _replace(cassette.path, text)
    except OSError as error:
        raise CassetteError(f"{_shown(cassette.path)}: cannot be written: {error.strerror or error}") from None


def path_for(root: Path, file: str, scenario: str, model: str, repeat: int) -> Path:
    """Where a trial's cassette lies: `cassettes/<file>/<scenario id>/<model>[.<repeat>].json`, safe on every system."""
    stem = re.sub(r"(\.scenario)?\.(ya?ml|py)$", "", file)
    folders = [safe_name(part, fold_case=False) for part in stem.split("/") if part not in ("", ".", "..")]
    name = safe_name(model) + (f".{repeat}" if repeat > 1 else "")
    return root.joinpath("cassettes", *folders, safe_name(scenario), f"{name}.json")


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
    status: int,
    reason: str,
    headers: Mapping[str, Iterable[str]],
    answer: bytes,
    agent: str | None,
    turn: int | None,
) -> Exchange:
    """One exchange as it went over the wire, scrubbed; of the headers only the content type is kept."""
    content_type = next((_first(value) for name, value in headers.items() if name.lower() == "content-type"), "")
    return Exchange(
        method=method.upper(),
        uri=scrub_uri(uri),
        body=scrub_json(_json_or_text(body)),
        status=status,
        reason=reason,
        content_type=content_type,
        answer=_scrub_answer(answer.decode("utf-8", "replace")),
        agent=agent,
        turn=turn,
    )


def first_difference(recorded: Json, asked: Json, path: str = "") -> str | None:
    """The first field in which two JSON values differ, with both values, or `None` when they are equal."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for key in [*recorded, *(key for key in asked if key not in recorded)]:
            place = f"{path}.{key}" if path else str(key)
            if key not in asked:
                return f"{place}: recorded {_short(recorded[key])}, now missing"
            if key not in recorded:
                return f"{place}: not recorded, now {_short(asked[key])}"
            found = first_difference(recorded[key], asked[key], place)
            if found:
                return found
        return None
    if isinstance(recorded, list) and isinstance(asked, list):
        for index, (old, new) in enumerate(zip(recorded, asked, strict=False)):
            found = first_difference(old, new, f"{path}[{index}]")
            if found:
                return found
        if len(recorded) != len(asked):
            return f"{path}: recorded {len(recorded)} item(s), now {len(asked)}"
        return None
    if type(recorded) is type(asked) and recorded == asked:
        return None
    if isinstance(recorded, int | float) and isinstance(asked, int | float) and recorded == asked:
        return None
    if isinstance(recorded, str) and isinstance(asked, str):
        old, new = _around_difference(recorded, asked)
        return f"{path or 'body'}: recorded {old}, now {new}"
    return f"{path or 'body'}: recorded {_short(recorded)}, now {_short(asked)}"


class _NotParsed(Exception):
    pass


def _parse(path: Path, text: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            raise _NotParsed(f"line {number}: a merge conflict was left in it")
    if path.suffix in (".yaml", ".yml"):
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            data = yaml.load(text, Loader=loader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f"line {mark.line + 1}: " if mark else ""
            raise _NotParsed(f"{place}not YAML: {getattr(error, 'problem', None) or error}") from None
    else:
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise _NotParsed(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
        except RecursionError:
            raise _NotParsed("nested too deeply") from None
    if not isinstance(data, dict) or not isinstance(data.get("interactions"), list):
        raise _NotParsed("no list of interactions in it")
    return data


def _exchanges(data: dict[str, Any]) -> Iterable[Exchange]:
    interactions = data["interactions"]
    ours = (data.get("metadata") or {}).get("chatflow-eval")
    who: list[dict[str, Any]] = [{} for _ in interactions]
    if ours is not None:
        if ours["format"] > FORMAT:
            raise ValueError(f"written by a newer chatflow-eval (format {ours['format']}, this one reads {FORMAT})")
        who = ours["exchanges"]
        if not len(who) == len(interactions) == ours["count"]:
            raise ValueError(f"{ours['count']} interactions were recorded, {len(interactions)} are left")
    for about, interaction in zip(who, interactions, strict=True):
        request, response = interaction["request"], interaction["response"]
        headers = {str(name).lower(): value for name, value in (response["headers"] or {}).items()}
        yield Exchange(
            method=str(request["method"]).upper(),
            uri=str(request["uri"]),
            body=_json_or_text(request["body"]),
            status=int(response["status"]["code"]),
            reason=str(response["status"]["message"] or ""),
            content_type=_first(headers.get("content-type") or ""),
            answer=_text(response["body"].get("string", "")),
            agent=about.get("agent"),
            turn=about.get("turn"),
        )


def _shown(path: Path) -> str:
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def _damaged(path: Path, problem: str, rerecord: str) -> CassetteDamaged:
    return CassetteDamaged(f"{_shown(path)}: damaged: {problem}; restore it, or record again with: {rerecord}")


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


def _json_or_text(body: bytes | Json) -> Json:
    if not body:
        return None
    if not isinstance(body, bytes | str):
        # aiohttp tells of a JSON body before it is made into text.
        return body
    text = _text(body)
    try:
        parsed: Json = json.loads(text)
    except ValueError:
        return text
    # A JSON string or number would not be told from a plain text when it is written again.
    return parsed if isinstance(parsed, dict | list) else text


def _scrub_answer(text: str) -> str:
    try:
        parsed = json.loads(text)
    except ValueError:
        return scrub_text(text)
    scrubbed = scrub_json(parsed)
    return text if scrubbed == parsed else _dump(scrubbed)


def _dump(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _first(value: str | Iterable[str]) -> str:
    return value if isinstance(value, str) else next(iter(value), "")


def _http_key(method: str, uri: str, body: Json) -> str:
    return f"{method.upper()} {scrub_uri(uri)} {_body_key(body)}"


def _body_key(body: Json) -> str:
    return scrub_text(json.dumps(_canonical(body), sort_keys=True, ensure_ascii=False))


def _canonical(body: Json) -> Json:
    """A chat request without what clients send or leave out as they please: nulls, `stream: false`, `0` for `0.0`."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(messages, list):
        return body
    canonical: dict[str, Json] = {
        key: float(value) if type(value) is int else value
        for key, value in body.items()
        if value is not None and (key, value) != ("stream", False)
    }
    canonical["messages"] = [_without_nulls(message) for message in messages]
    return canonical


def _without_nulls(message: Json) -> Json:
    return {k: v for k, v in message.items() if v is not None} if isinstance(message, dict) else message


def _without_model(body: Json) -> Json:
    return {key: value for key, value in body.items() if key != "model"} if isinstance(body, dict) else body


def _same_model(asked: Json, recorded: Json) -> bool:
    if not isinstance(asked, dict) or not isinstance(recorded, dict):
        return False
    # litellm strips the provider from the name before it sends: `openai/x` goes out as `x`.
    wanted, sent = str(asked.get("model")), str(recorded.get("model"))
    return wanted == sent or wanted.endswith(f"/{sent}")


def _chat_difference(recorded: Json, asked: Json) -> str | None:
    old, new = _canonical(recorded), scrub_json(_canonical(asked))
    if _same_model(new, old):
        old, new = _without_model(old), _without_model(new)
    return first_difference(old, new)


def _place_difference(nearest: Exchange, asked: Asked) -> str:
    if asked.uri and (asked.method.upper(), scrub_uri(asked.uri)) != (nearest.method, nearest.uri):
        return f"recorded {nearest.method} {nearest.uri}, now {asked.method.upper()} {scrub_uri(asked.uri)}"
    return "the same request in another order than recorded"


def _around_difference(old: str, new: str, width: int = 40) -> tuple[str, str]:
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    begin = max(0, start - width // 2)

    def cut(text: str) -> str:
        end = start + width
        return f"'{'...' if begin else ''}{text[begin:end]}{'...' if len(text) > end else ''}'"

    return cut(old), cut(new)


def _short(value: Json, width: int = 80) -> str:
    text = _dump(value)
    return text if len(text) <= width else f"{text[:width]}..."
