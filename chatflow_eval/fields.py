"""What the fields of a scenario may hold, read the same way from Python and from YAML: names, prose, data, counts."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Plain(str):
    """A YAML scalar written without quotes: text where text is wanted, a value where data is wanted."""

    __slots__ = ()


class Cut(Plain):
    """A plain scalar with a comment behind it on its line; the comment may have been meant as text."""

    __slots__ = ("comment",)
    comment: str

    @classmethod
    def of(cls, text: str, comment: str) -> Cut:
        """The text, and the comment with its `#`."""
        cut = cls(text)
        cut.comment = comment
        return cut


class Value(BaseModel):
    """A frozen value with no unknown fields: the one type for Python and YAML."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    short: ClassVar[tuple[dict[str, Any], ...]] = ()
    """JSON schemas of the short forms, beside the mapping of its fields."""


def refusal(problem: str) -> PydanticCustomError:
    """The error a validator raises; `problem` is for a person."""
    return PydanticCustomError("refused", "{problem}", {"problem": problem})


def shown(value: object) -> str:
    """A value as messages show it: short, on one line, nothing invisible in it."""
    if isinstance(value, str):
        text = _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
        return f"`{text if len(text) <= 60 else text[:57] + '...'}`" if text else "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "nothing" if value is None else shown(str(value))


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the nearest known word, or what is known where none is near."""
    from rapidfuzz import fuzz, process

    words = list(known)
    best = process.extractOne(word, words, scorer=fuzz.ratio, processor=str.casefold, score_cutoff=60)
    if best is not None:
        return f"; did you mean {shown(best[0])}?"
    listed = ", ".join(shown(each) for each in words[:20]) + (", ..." if len(words) > 20 else "")
    return f"; known: {listed}" if words else ""


_DIRECTIONS = "\u202a-\u202e\u2066-\u2069"
_INVISIBLE = re.compile(f"[\\x00-\\x1f\\x7f-\\x9f\u2028\u2029{_DIRECTIONS}]")


def _prose(value: object) -> object:
    if isinstance(value, Cut):
        raise refusal(
            f"the text ends at {shown(str(value))} because of ` {value.comment[:20]}`: quote this text, "
            "or put the comment on a line of its own"
        )
    return _text(value)


def _text(value: object) -> object:
    if isinstance(value, Cut) and value.comment[1:2].strip():
        raise refusal(f"the text ends at {shown(str(value))} because of ` {value.comment[:20]}`: quote this text")
    if isinstance(value, Plain) and not value:
        raise refusal("expected text, found nothing; an empty text is written ''")
    return value


def _visible(value: str) -> str:
    if not value.strip():
        raise refusal("expected a name, found an empty text")
    if _INVISIBLE.search(value):
        raise refusal(f"{shown(value)} holds control characters or characters that turn the direction of text")
    return value


def regular(value: str) -> str:
    """The text, which is a regular expression."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of brackets that a later Python may read otherwise
            re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise refusal(f"{shown(value)} is no regular expression: {error}") from None
    return value


TEXT_SCHEMA: dict[str, Any] = {"type": ["string", "number", "boolean"]}
"""JSON schema of text in YAML, where `12` and `true` are texts too."""

_AS_TEXT = WithJsonSchema(TEXT_SCHEMA)

Prose: TypeAlias = Annotated[str, BeforeValidator(_prose), _AS_TEXT]
"""Free text, kept as written; in YAML no comment may follow it unquoted."""

Text: TypeAlias = Annotated[str, BeforeValidator(_text), _AS_TEXT]
"""Short text, kept as written."""

Name: TypeAlias = Annotated[str, BeforeValidator(_text), AfterValidator(_visible), _AS_TEXT]
"""Text that names something: not empty, nothing invisible in it."""

Pattern: TypeAlias = Annotated[str, BeforeValidator(_prose), AfterValidator(regular), _AS_TEXT]
"""A regular expression, searched for."""


_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def _tool_name(value: str) -> str:
    if not _TOOL_NAME.fullmatch(value):
        raise refusal(
            f"{shown(value)} is no name that every provider takes for a tool: expected up to 64 letters, digits, "
            "`_` and `-`, a letter or `_` first"
        )
    return value


ToolName: TypeAlias = Annotated[str, BeforeValidator(_text), AfterValidator(_tool_name), _AS_TEXT]


_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,4000})(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")


def data(value: Any) -> Any:
    """The value with its plain YAML scalars read as YAML 1.2 data, as far as JSON has a word for it.

    `no`, `on`, `12:30`, `2026-01-01`, `007` and `.nan` stay text.
    """
    if isinstance(value, Plain):
        return _scalar(value)
    if isinstance(value, dict):
        return {str(key) if isinstance(key, str) else key: data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [data(item) for item in value]
    return value


def _scalar(value: Plain) -> Any:
    if value in _WORDS:
        return _WORDS[value]
    if _NUMBER.fullmatch(value):
        number: int | float = json.loads(value)
        return str(value) if number in (float("inf"), float("-inf")) else number
    _text(value)
    return str(value)


Data: TypeAlias = Annotated[Any, BeforeValidator(data)]
"""Any JSON value."""

JsonMap: TypeAlias = Annotated[dict[str, Any], BeforeValidator(data)]
"""A JSON object."""


def json_text(value: Any) -> str:
    """A JSON value as one line of JSON; what is none, as Python shows it."""
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def same(actual: Any, expected: Any) -> bool:
    """Whether two JSON values are equal: 20 and 20.0 are, true and 1 are not."""
    if isinstance(expected, Mapping):
        return (
            isinstance(actual, Mapping)
            and actual.keys() == expected.keys()
            and all(same(actual[key], expected[key]) for key in expected)
        )
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(actual, (list, tuple))
            and len(actual) == len(expected)
            and all(same(*pair) for pair in zip(actual, expected, strict=True))
        )
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    return bool(actual == expected)


def subset(actual: Any, expected: Mapping[str, Any]) -> bool:
    """Whether a JSON object has all that is expected, at every depth of mappings, and maybe more."""
    return isinstance(actual, Mapping) and all(
        key in actual and (subset(actual[key], value) if isinstance(value, Mapping) else same(actual[key], value))
        for key, value in expected.items()
    )


def many(value: Any) -> Any:
    """One thing as a list of it; a list as it is."""
    return value if isinstance(value, (list, tuple, set, frozenset)) else [value]


class _Many:
    """Lets one thing stand for the list of it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(many, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        listed = handler(schema)
        return {"anyOf": [listed["items"], listed]}


_T = TypeVar("_T")

Many: TypeAlias = Annotated[tuple[_T, ...], _Many()]
"""Any number of things; one needs no list."""

Some: TypeAlias = Annotated[tuple[_T, ...], Field(min_length=1), _Many()]
"""One thing or more; one needs no list."""
