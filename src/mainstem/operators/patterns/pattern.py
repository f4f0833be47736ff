"""Pattern: the sequence of rows that `match` looks for, built step by step.

    step("small", "amount < 2").times(3).then(step("large", "amount > 500"))

A pattern is a value: every method returns a new one. It is a row of links, each a part and how it follows the one
before. A part is a step, a group, alternatives or steps in any order, and how often it is repeated:

    Pattern = Link+        Link = how, Part        Part = body, low, high, optional, greedy, until, inside
    body    = Step | Group(Pattern) | Either(Pattern+) | Both(Pattern+)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from mainstem.arguments import checked_calls
from mainstem.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Both", "Either", "Group", "Link", "Part", "Pattern", "Step", "both", "either", "group", "step"]

Condition: TypeAlias = "Column | str"
# How a row may follow the one before: at once, as the first that satisfies the condition, or as any later one.
Contiguity: TypeAlias = Literal["next", "then", "then_any"]
How: TypeAlias = Literal["next", "then", "then_any", "not_next", "not_then"]

NEGATIONS = ("not_next", "not_then")


@dataclass(frozen=True)
class Step:
    """A row with a name. Without a condition it is any row."""

    name: str
    condition: Condition | None = None


@dataclass(frozen=True)
class Group:
    """A sequence that is repeated as a whole."""

    pattern: Pattern


@dataclass(frozen=True)
class Either:
    """One of several sequences."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True)
class Both:
    """All of several sequences, one after another in any order."""

    members: tuple[Pattern, ...]


Body: TypeAlias = "Step | Group | Either | Both"


@dataclass(frozen=True)
class Part:
    """A body, and how often it is repeated."""

    body: Body
    low: int = 1
    # None: without limit.
    high: int | None = 1
    optional: bool = False
    greedy: bool = False
    until: Condition | None = None
    # How its repetitions follow one another; in Both, its members.
    inside: Contiguity = "then"

    @property
    def loops(self) -> bool:
        """Whether it may be repeated."""
        return self.high is None or self.high > 1

    def show(self) -> str:
        """The part in words, for errors."""
        if isinstance(self.body, Step):
            return f'step "{self.body.name}"'
        return {Group: "group", Either: "either", Both: "both"}[type(self.body)]


@dataclass(frozen=True)
class Link:
    """A part of a sequence, and how it follows the part before."""

    how: How
    part: Part


@checked_calls
@dataclass(frozen=True)
class Pattern:
    """A sequence of steps; see `step`.

    >>> small, large = step("small", "amount < 2"), step("large", "amount > 500")
    >>> [made.name for made in small.times(3).then(large).steps]
    ['small', 'large']
    """

    links: tuple[Link, ...]

    # How the next step follows.

    def then(self, other: Pattern) -> Pattern:
        """Then the first row that satisfies the condition; other rows may lie between (followedBy)."""
        return self._follow("then", other)

    def next(self, other: Pattern) -> Pattern:
        """Then the very next row of the key (strict contiguity)."""
        return self._follow("next", other)

    def then_any(self, other: Pattern) -> Pattern:
        """Then each later row that satisfies the condition: one match for each (followedByAny)."""
        return self._follow("then_any", other)

    def not_next(self, other: Pattern) -> Pattern:
        """The very next row must not satisfy the condition. At the end of a pattern, the match is complete with that row."""
        return self._negate("not_next", other)

    def not_then(self, other: Pattern) -> Pattern:
        """No row up to the next step may satisfy the condition. At the end of a pattern it needs `within`."""
        return self._negate("not_then", other)

    def _follow(self, how: How, other: Pattern) -> Pattern:
        _check_pattern(other, how)
        first, *rest = other.links
        made = Pattern((*self.links, Link(how, first.part), *rest))
        made.check_names()
        return made

    def _negate(self, how: How, other: Pattern) -> Pattern:
        _check_pattern(other, how)
        [*_, last] = other.links
        if len(other.links) > 1 or last.part != Part(last.part.body) or not isinstance(last.part.body, Step):
            raise Invalid(
                f"{how} takes a single step",
                detail="A pattern can exclude one row, not a sequence or a number of rows.",
                hint='For example: a.not_then(step("refund", "amount < 0")).then(b). To exclude several kinds of rows, '
                "join their conditions with OR.",
            )
        return self._follow(how, other)

    # How often the step is repeated.

    def times(self, low: int, high: int | None = None) -> Pattern:
        """`low` times; with `high` from `low` to `high` times."""
        part = self._only("times")
        self._unrepeated(part)
        high = low if high is None else high
        if low < 0 or high < max(low, 1):
            raise Invalid(
                f"times({low}, {high}) of {part.show()} is not a range",
                detail="The first number is at least 0, the second at least 1 and not below the first.",
                hint="For example: times(3), times(2, 4) or at_least(2).",
            )
        return self._with(replace(part, low=max(low, 1), high=high, optional=part.optional or low == 0))

    def at_least(self, low: int) -> Pattern:
        """`low` times or more."""
        part = self._only("at_least")
        self._unrepeated(part)
        if low < 0:
            raise Invalid(f"at_least({low}) of {part.show()} is negative", hint="Give 0 or more.")
        return self._with(replace(part, low=max(low, 1), high=None, optional=part.optional or low == 0))

    def optional(self) -> Pattern:
        """Present or not."""
        return self._with(replace(self._only("optional"), optional=True))

    def greedy(self) -> Pattern:
        """As many rows as possible before the next step: a row that the loop can take is not skipped, nor left to it."""
        part = self._only("greedy")
        if not isinstance(part.body, Step):
            raise Invalid(
                f"{part.show()} cannot be greedy",
                detail="Whether a row belongs to one more round of a group is only known when the round is complete.",
                hint="Make the loops inside it greedy.",
            )
        if not part.loops or part.low == part.high:
            raise Invalid(
                f"{part.show()} cannot be greedy",
                detail="It has a fixed number of rows.",
                hint="Give it a range first: at_least(1).greedy() or times(2, 4).greedy().",
            )
        if part.inside == "then_any":
            raise Invalid(
                f"{part.show()} cannot be greedy and any()",
                detail="any() leaves out rows that greedy() must take.",
                hint="Leave one of them out.",
            )
        return self._with(replace(part, greedy=True))

    def until(self, condition: Condition) -> Pattern:
        """The loop ends before the first row that satisfies the condition."""
        part = self._loop("until")
        if part.until is not None:
            raise Invalid(f"until of {part.show()} is given twice", hint="Join the conditions with OR.")
        return self._with(replace(part, until=condition))

    def strict(self) -> Pattern:
        """Inside a loop: no other rows between its rows."""
        return self._inside("next", "strict")

    def any(self) -> Pattern:
        """Inside a loop: rows that it could take may be left out, so every combination is a match."""
        part = self._inside("then_any", "any")
        if part.links[0].part.greedy:
            raise Invalid(
                f"{part.links[0].part.show()} cannot be greedy and any()",
                detail="any() leaves out rows that greedy() must take.",
                hint="Leave one of them out.",
            )
        return part

    def _inside(self, how: Contiguity, called: str) -> Pattern:
        part = self._only(called) if isinstance(self.links[-1].part.body, Both) else self._loop(called)
        if part.inside != "then":
            raise Invalid(
                f"{part.show()} is given strict() or any() twice",
                detail="strict() allows no rows between, any() allows all.",
                hint="Choose one.",
            )
        return self._with(replace(part, inside=how))

    def _only(self, called: str) -> Part:
        if len(self.links) != 1:
            raise Invalid(
                f"{called} is applied to a sequence of {len(self.links)} parts",
                detail="It could mean the last step or the whole sequence.",
                hint=f"For the last step: a.then(b.{called}(...)). For all of it: group(a.then(b)).{called}(...).",
            )
        return self.links[0].part

    def _loop(self, called: str) -> Part:
        part = self._only(called)
        if not part.loops:
            raise Invalid(
                f"{called} is applied to {part.show()}, which is not repeated",
                detail=f"{called} describes the rows of a loop.",
                hint=f"Say first how often: times(3).{called}(...) or at_least(1).{called}(...).",
            )
        return part

    def _unrepeated(self, part: Part) -> None:
        if part.loops or part.low != 1:
            raise Invalid(
                f"{part.show()} is already repeated",
                detail="A part has one number of repetitions.",
                hint="To repeat the repetition: group(p).times(2).",
            )

    def _with(self, part: Part) -> Pattern:
        return Pattern((Link(self.links[0].how, part),))

    # What is in it.

    @property
    def steps(self) -> list[Step]:
        """All steps in the order in which they are written, negated ones too."""
        return [made for link in self.links for made in _steps_of(link.part)]

    @property
    def taken(self) -> list[Step]:
        """The steps that rows of a match may have, in the order in which they are written."""
        return [
            made
            for link in self.links
            if link.how not in NEGATIONS
            for made in ([link.part.body] if isinstance(link.part.body, Step) else _taken_of(link.part.body))
        ]

    @property
    def nullable(self) -> bool:
        """Whether no row at all satisfies it."""
        return all(link.how in NEGATIONS or _nullable(link.part) for link in self.links)

    def show(self) -> str:
        """The pattern in one line.

        >>> step("small", "amount < 2").times(3).then(step("large", "amount > 500")).show()
        'small [amount < 2] 3 times then large [amount > 500]'
        """
        first, *rest = self.links
        return " ".join([_show(first.part), *(f"{link.how} {_show(link.part)}" for link in rest)])

    def with_conditions(self, change: Callable[[Condition], Condition]) -> Pattern:
        """The same pattern with other conditions."""
        return Pattern(tuple(Link(link.how, _change(link.part, change)) for link in self.links))

    def check_names(self) -> None:
        """Raise if two steps have one name."""
        names = [made.name for made in self.steps]
        for name in names:
            if names.count(name) > 1:
                raise Invalid(
                    f'two steps are named "{name}"',
                    detail="Conditions and measures refer to a step by its name.",
                    hint=f'Give one of them another name: step("{name}_again", ...).',
                )


def _show(part: Part) -> str:
    body = part.body
    if isinstance(body, Step):
        words = [body.name if body.condition is None else f"{body.name} [{body.condition}]"]
    else:
        words = [f"{part.show()}({', '.join(member.show() for member in _members(body))})"]
    if part.high is None:
        words.append(f"at least {part.low} times")
    elif part.high > 1:
        words.append(f"{part.low} times" if part.low == part.high else f"{part.low} to {part.high} times")
    words += ["optional"] * part.optional + ["greedy"] * part.greedy
    words += [] if part.until is None else [f"until [{part.until}]"]
    words += {"then": [], "next": ["strict"], "then_any": ["any"]}[part.inside]
    return " ".join(words)


def _change(part: Part, change: Callable[[Condition], Condition]) -> Part:
    until = None if part.until is None else change(part.until)
    body: Body = part.body
    if isinstance(body, Step):
        body = Step(body.name, None if body.condition is None else change(body.condition))
    elif isinstance(body, Group):
        body = Group(body.pattern.with_conditions(change))
    elif isinstance(body, Either):
        body = Either(tuple(option.with_conditions(change) for option in body.options))
    else:
        body = Both(tuple(member.with_conditions(change) for member in body.members))
    return replace(part, body=body, until=until)


def _members(body: Body) -> tuple[Pattern, ...]:
    if isinstance(body, Group):
        return (body.pattern,)
    return body.options if isinstance(body, Either) else body.members if isinstance(body, Both) else ()


def _steps_of(part: Part) -> Iterator[Step]:
    if isinstance(part.body, Step):
        yield part.body
    for member in _members(part.body):
        yield from member.steps


def _taken_of(body: Body) -> list[Step]:
    return [made for member in _members(body) for made in member.taken]


def _nullable(part: Part) -> bool:
    if part.optional or isinstance(part.body, Step):
        return part.optional
    nullable = [member.nullable for member in _members(part.body)]
    return any(nullable) if isinstance(part.body, Either) else all(nullable)


def _check_pattern(other: object, called: str) -> None:
    if not isinstance(other, Pattern):
        raise Invalid(
            f"{called} takes a pattern, not {type(other).__name__}",
            detail="A pattern begins with step, group, either or both.",
            hint=f'For example: {called}(step("large", "amount > 500")).',
        )


def _check_ending(member: Pattern, called: str) -> None:
    how = member.links[-1].how
    if how in NEGATIONS:
        raise Invalid(
            f"a pattern inside {called} ends with {how}",
            detail="What follows it is not known there.",
            hint=f"Exclude the row after {called}(...): {called}(...).{how}(c).",
        )


def step(name: str, condition: Condition | None = None) -> Pattern:
    """A row that satisfies a condition: SQL text or a Spark column; without one, any row.

    The text may refer to rows that the match has so far, by the names of their steps: `last(small.amount)` (of the row
    before it: `last(small.amount, 1)`), `first`, `count`, `sum`, `avg`, `min`, `max`. Null is no.

    >>> step("large", "amount > 500 AND amount > 9 * avg(small.amount)").steps[0].name
    'large'
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise Invalid(
            f'the name of a step, "{name}", is not an identifier',
            detail="Conditions and measures refer to a step by its name: small.amount.",
            hint='Use letters, digits and _: step("small", "amount < 2").',
        )
    return Pattern((Link("then", Part(Step(name, condition))),))


def group(pattern: Pattern) -> Pattern:
    """A sequence as one part, to be repeated as a whole.

    >>> pair = group(step("up", "change > 0").next(step("down", "change < 0")))
    >>> len(pair.times(2).links)
    1
    """
    _check_pattern(pattern, "group")
    if pattern.nullable:
        raise Invalid(
            "a group may not be empty",
            detail="All of its steps are optional, so it could be repeated endlessly without a row.",
            hint="Make the group itself optional, and one of its steps mandatory.",
        )
    _check_ending(pattern, "group")
    return Pattern((Link("then", Part(Group(pattern))),))


def either(first: Pattern, second: Pattern, *others: Pattern) -> Pattern:
    """One of several sequences.

    >>> [made.name for made in either(step("refund", "amount < 0"), step("chargeback", "kind = 'c'")).steps]
    ['refund', 'chargeback']
    """
    return _several(Either, (first, second, *others), "either")


def both(first: Pattern, second: Pattern, *others: Pattern) -> Pattern:
    """All of several sequences, in any order; other rows may lie between.

    >>> len(both(step("login", "kind = 'l'"), step("reset", "kind = 'r'")).steps)
    2
    """
    return _several(Both, (first, second, *others), "both")


# both(...) is compiled to every order of its members.
MEMBERS_MAX = 5


def _several(kind: type[Either] | type[Both], members: tuple[Pattern, ...], called: str) -> Pattern:
    for member in members:
        _check_pattern(member, called)
        if member.nullable:
            raise Invalid(
                f"a member of {called} may not be empty",
                detail="All of its steps are optional.",
                hint=f"Make {called}(...) itself optional.",
            )
        _check_ending(member, called)
    if kind is Both and len(members) > MEMBERS_MAX:
        raise Invalid(
            f"both has {len(members)} members",
            detail=f"It may have at most {MEMBERS_MAX}: each order of them is a sequence of its own.",
            hint='Look for them in a loop: step(..., "a OR b OR c").times(6), and check the measures.',
        )
    made = Pattern((Link("then", Part(kind(members))),))
    made.check_names()
    return made
