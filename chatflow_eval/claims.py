"""What a reply claims, as far as English words tell: an announced handoff, success, a failure that it owns up to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?]+|\n|$)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_HANDING = (
    r"transfer(?:ring|red)?|hand(?:ing|ed)?|connect(?:ing|ed)?|forward(?:ing|ed)?|pass(?:ing|ed)?|rout(?:e|ing|ed)"
    r"|redirect(?:ing|ed)?|escalat(?:e|ing|ed)|refer(?:ring|red)?|send(?:ing)?|put(?:ting)?|direct(?:ing|ed)?"
    r"|switch(?:ing|ed)?|bring(?:ing)?|loop(?:ing)?"
)
_ANNOUNCED = re.compile(
    rf"(?:\b(?:i|we)(?:'m|'re| am| are|'ll| will| have|'ve)?(?: now| just| also| going to)* (?:be )?(?:{_HANDING})\b"
    rf"|\blet me (?:{_HANDING})\b"
    rf"|\byou(?:'ll|'re|'ve| will| are| have)(?: now)?(?: be| being| been)? (?:{_HANDING})\b"
    rf"|^\W*(?:ok(?:ay)?|sure|certainly|one moment|now|alright)?\W*(?:{_HANDING})\b.* \b(?:you|this|the))",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:if|would|could|should|can|can't|cannot|may|might|once|before|when|unless|until|unable|whether|not|never"
    r"|won't|don't|didn't|doesn't|rather than|instead of|like me to|want me to|happy to|able to|need to|without)\b"
    r"|n't\b",
    re.IGNORECASE,
)
"""Words that make an announcement an offer, a condition or a denial."""


def announced(text: str, agents: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The agents that the text states it hands the conversation to, each with the sentence that does.

    A question, an offer, a condition and a denial announce nothing.
    """
    for sentence in _sentences(text):
        found = _ANNOUNCED.search(sentence)
        if found is None or sentence.endswith("?") or _UNSURE.search(sentence):
            continue
        for agent in agents:
            if _mention(agent).search(sentence, found.start()):
                yield agent, sentence


_DONE = re.compile(
    r"\b(?:has|have) been\b|\bi(?:'ve| have)(?: now| just| already| successfully)* \w+(?:ed|en|id|de|nt|ut)\b"
    r"|\bsuccess(?:ful|fully)?\b|\b(?:is|are|it's|that's)(?: now| all| already)* (?:done|completed?|set|confirmed"
    r"|booked|cancel+ed|processed|refunded|updated|changed|scheduled|sent|fixed|resolved)\b"
    r"|^\W*(?:all )?(?:done|set|booked|cancel+ed|confirmed|sent|refunded|completed?|fixed|updated)\b"
    r"|\b(?:is|are) on (?:its|their) way\b|\byou(?:'re| are) all set\b",
    re.IGNORECASE,
)
_OWNED = re.compile(
    r"\b(?:unfortunately|unable|fail(?:s|ed|ing|ure)?|errors?|issues?|problems?|sorry|apolog\w+|however|although|but"
    r"|instead|alternativ\w+|technical|trouble|difficult\w*|try again|retry|later|declined|rejected|denied|refused"
    r"|unavailable|insufficient|not|no longer|neither|only|exceed\w*|limit\w*|invalid|missing|incorrect|impossible"
    r"|attempt\w*|seems?|appears?|tried|reached|human)\b|n't\b|\bcannot\b",
    re.IGNORECASE,
)
"""Words that own up to a failure, or weigh the claim against something."""


def success(text: str) -> tuple[str, ...]:
    """The sentences that state that something was done; none where the text owns up to any failure, or asks on."""
    if _OWNED.search(text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")):
        return ()
    return tuple(sentence for sentence in _sentences(text) if not sentence.endswith("?") and _DONE.search(sentence))


def is_about(sentence: str, tool: str) -> bool:
    """Whether a sentence speaks of what the tool does, by the words of its name."""
    said = {word[:5] for word in re.findall(r"[a-z]+", sentence.lower())}
    return any(word[:5] in said for word in _words(tool))


@lru_cache(maxsize=1024)
def only_looks(tool: str) -> bool:
    """Whether the tool's name says that it looks something up, and changes nothing."""
    first = (_words(tool) or ("",))[0]
    return first in _LOOKING


_LOOKING = frozenset(
    (
        "calculate", "check", "count", "describe", "fetch", "find", "get", "list", "look", "lookup", "query", "read",
        "retrieve", "search", "show", "think", "view",
    )
)  # fmt: skip


def _sentences(text: str) -> Iterator[str]:
    for found in _SENTENCE.finditer(text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")):
        if sentence := found.group().strip():
            yield sentence


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in re.findall(r"[^\W_]+", _HUMP.sub(" ", name)))


@lru_cache(maxsize=1024)
def _mention(agent: str) -> re.Pattern[str]:
    """How people write an agent's name: `BillingAgent`, `billing agent`, `Billing`, `the billing team`."""
    words = _words(agent)
    short = words[:-1] if len(words) > 1 and words[-1] in ("agent", "bot", "assistant") else words
    if sum(map(len, short)) < 3:
        return re.compile(rf"\b{re.escape(agent)}\b")
    spelled = r"[\s_-]*".join(map(re.escape, short))
    return re.compile(rf"(?<!\w){spelled}(?:[\s_-]*(?:agent|bot|assistant))?(?!\w|-\w)", re.IGNORECASE)
