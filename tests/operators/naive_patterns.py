"""A naive matcher: writes out every word of a pattern, tries it on all rows, and judges each sequence by definition.

A word is a list of rows to take, each with what is said of the rows before it since the one taken last. Slow and plain: it
knows no states, and looks at all rows between two again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import permutations
from typing import Any

from mainstem.operators.patterns.after_match import AfterMatch
from mainstem.operators.patterns.pattern import Either, Group, Link, Part, Pattern, Step

# The letters of the rows that satisfy it; None: all.
Letters = str | None
Path = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Taken:
    """A row to take. `how` is None at the head of a group."""

    step: str
    letters: Letters
    how: str | None = None
    # It must not be one of these.
    barred: str = ""


@dataclass(frozen=True)
class Rule:
    """What is said of the rows up to the next one: never | not first | greedy | around (an optional part was left out)."""

    kind: str
    letters: Letters = ""
    until: Letters = ""
    first_only: bool = False


Word = tuple["Taken | Rule", ...]
# What is said before a row, and the row; at the end of a word None.
Open = tuple[tuple[Rule, ...], "Taken | None"]


def satisfies(letter: str, letters: Letters) -> bool:
    return letters is None or letter in letters


# Words


# Patterns with more words than this are not tried.
WORDS_MAX = 300


class TooManyWords(Exception):
    """A pattern is too large to be enumerated."""


@lru_cache(maxsize=256)
def words_of(links: tuple[Link, ...], rows: int) -> set[Word]:
    found: set[Word] = {()}
    for number, link in enumerate(links):
        if link.how in ("not_next", "not_then"):
            assert isinstance(link.part.body, Step)
            kind = "not first" if link.how == "not_next" else "never"
            tails: set[Word] = {(Rule(kind, _letters(link.part.body.condition)),)}
        else:
            after = links[number + 1] if number + 1 < len(links) else None
            never = None
            if after is not None and after.how == "not_then":
                assert isinstance(after.part.body, Step)
                never = Rule("never", _letters(after.part.body.condition))
            tails = part_words(link.part, link.how if number else None, never, rows)
        if len(found) * len(tails) > WORDS_MAX:
            raise TooManyWords
        found = {cut((*word, *tail), rows) for word in found for tail in tails}
    return found


def part_words(part: Part, how: str | None, never: Rule | None, rows: int) -> set[Word]:
    bodies = body_words(part, rows)
    until = "" if part.until is None else _letters(part.until)
    high = min(part.high or rows + 1, rows + 1)
    between = (*((Rule("never", until),) if until != "" else ()), *((never,) if never else ()))
    found: set[Word] = set()
    repeated: set[Word] = {()}
    for count in range(1, max(high, part.low) + 1):
        begun = {headed(word, how if count == 1 else part.inside, until if count == 1 else "") for word in bodies}
        joint = between if count > 1 else ()
        if len(repeated) * len(begun) > WORDS_MAX:
            raise TooManyWords
        repeated = {cut((*before, *joint, *word), rows) for before in repeated for word in begun}
        if count >= part.low:
            found |= {(*word, *greed(part, until, count != part.high, part.inside == "next")) for word in repeated}
    if part.optional:
        found.add((Rule("around"), *greed(part, until, True, how == "next")))
    return found


def greed(part: Part, until: Letters, open_ended: bool, first_only: bool) -> Word:
    if not part.greedy or not open_ended:
        return ()
    assert isinstance(part.body, Step)
    return (Rule("greedy", _letters(part.body.condition), until, first_only),)


def body_words(part: Part, rows: int) -> set[Word]:
    body = part.body
    if isinstance(body, Step):
        return {(Taken(body.name, _letters(body.condition)),)}
    if isinstance(body, Group):
        found = words_of(body.pattern.links, rows)
    elif isinstance(body, Either):
        found = {word for option in body.options for word in words_of(option.links, rows)}
    else:
        found = {word for order in permutations(body.members) for word in joined(order, part.inside, rows)}
    until = "" if part.until is None else _letters(part.until)
    return {tuple(_watched(word, until)) for word in found} if until != "" else found


def joined(order: Sequence[Pattern], how: str, rows: int) -> set[Word]:
    found: set[Word] = {()}
    for number, member in enumerate(order):
        tails = {headed(word, how if number else None, "") for word in words_of(member.links, rows)}
        found = {cut((*word, *tail), rows) for word in found for tail in tails}
    return found


def _watched(word: Word, until: Letters) -> Iterator[Taken | Rule]:
    """Inside a group none of its rows, nor those between, satisfies its `until`."""
    begun = False
    for token in word:
        if isinstance(token, Taken):
            if begun:
                yield Rule("never", until)
            begun = True
        yield token


def headed(word: Word, how: str | None, barred: str) -> Word:
    """The word with its first row following as its part does."""
    made: list[Taken | Rule] = list(word)
    for place, token in enumerate(made):
        if isinstance(token, Taken):
            made[place] = replace(token, how=token.how or how, barred=token.barred + barred)
            break
    return tuple(made)


def cut(word: Word, rows: int) -> Word:
    """One row more than there are is enough to know that a sequence may go on."""
    taken = 0
    for place, token in enumerate(word):
        taken += isinstance(token, Taken)
        if taken > rows + 1:
            return word[:place]
    return word


def _letters(condition: Any) -> Letters:
    return condition


# Matches


@dataclass(frozen=True)
class NaiveMatch:
    path: Path
    at: int | None
    timed_out: bool
    known_after: int


@dataclass
class Naive:
    """The rows (letter and time) and what is looked for in them."""

    pattern: Pattern
    rows: Sequence[tuple[str, int]]
    within: int | None
    gap: int | None
    after_match: AfterMatch
    until: int

    @cached_property
    def openings(self) -> dict[Path, set[Open]]:
        """Every sequence that the pattern allows, and what may follow it."""
        found: dict[Path, set[Open]] = {}
        tree: dict[Open, Any] = {}
        for word in words_of(self.pattern.links, len(self.rows)):
            at, rules = tree, []
            for token in word:
                if isinstance(token, Rule):
                    rules.append(token)
                else:
                    at, rules = at.setdefault((tuple(rules), token), {}), []
            at.setdefault((tuple(rules), None), {})
        self._follow((), tree, found)
        return found

    def _follow(self, path: Path, tree: dict[Open, Any], found: dict[Path, set[Open]]) -> None:
        if path:
            found.setdefault(path, set()).update(tree)
        for (rules, token), rest in tree.items():
            if token is None:
                continue
            for row in range(path[-1][0] + 1 if path else 0, len(self.rows)):
                if self.takes(path, rules, token, row):
                    self._follow((*path, (row, token.step)), rest, found)

    def deadline(self, path: Path) -> int:
        ends = [self.rows[path[0][0]][1] + self.within] if self.within is not None else []
        ends += [self.rows[path[-1][0]][1] + self.gap] if self.gap is not None else []
        return min(ends, default=10**9)

    def takes(self, path: Path, rules: Sequence[Rule], token: Taken, row: int) -> bool:
        letter, time = self.rows[row]
        if not satisfies(letter, token.letters) or satisfies(letter, token.barred):
            return False
        if not path:
            return True
        last = path[-1][0]
        if time >= self.deadline(path) or not self.obeys(rules, last, row):
            return False
        between = [letter for letter, _ in self.rows[last + 1 : row]]
        if token.how == "next":
            return not between
        return token.how == "then_any" or not any(satisfies(letter, token.letters) for letter in between)

    def obeys(self, rules: Sequence[Rule], last: int, row: int) -> bool:
        """Whether the rows after `last` up to `row` are as the rules say."""
        letters = [letter for letter, _ in self.rows[last + 1 : row + 1]]
        for rule in rules:
            watched = letters
            if rule.kind == "greedy":
                ends = [place for place, letter in enumerate(letters) if satisfies(letter, rule.until)]
                watched = letters[: ends[0]] if ends else letters
            if rule.kind == "not first" or rule.first_only:
                watched = watched[:1]
            if rule.kind != "around" and any(satisfies(letter, rule.letters) for letter in watched):
                return False
        return True

    def waits(self, path: Path, opening: Open, row: int) -> bool:
        """Whether after this row the sequence can still become longer, or a match."""
        rules, token = opening
        last = path[-1][0]
        if token is None:
            kind = ending(rules)
            return self.obeys(rules, last, row) if kind == "never" else kind == "not first" and row == last
        if not self.obeys(rules, last, row):
            return False
        between = [letter for letter, _ in self.rows[last + 1 : row + 1]]
        if token.how == "next":
            return not between
        return token.how == "then_any" or not any(satisfies(letter, token.letters) for letter in between)

    def run(self, *, timeouts: bool = True) -> list[NaiveMatch]:
        """All matches, and the candidates that timed out."""
        self.found: list[NaiveMatch] = []
        self.held: list[tuple[Path, int | None]] = []
        self.gone: set[int] = set()
        deadlines = sorted({self.deadline(path) for path in self.openings})
        for row, (_, time) in enumerate(self.rows):
            while deadlines and deadlines[0] <= time:
                self._end(deadlines.pop(0), row - 1, timeouts)
            done = []
            for path, openings in self.openings.items():
                for rules, token in openings:
                    if token is None and self._complete(path, rules, row):
                        done.append(path)
                        break
            self._settle([(path, None) for path in done], row, time, time)
        for deadline in deadlines:
            if deadline <= self.until:
                self._end(deadline, len(self.rows) - 1, timeouts)
        return self.found

    def _complete(self, path: Path, rules: Sequence[Rule], row: int) -> bool:
        last, kind = path[-1][0], ending(rules)
        if not kind:
            return last == row
        return kind == "not first" and row == last + 1 and self.obeys(rules, last, row) and (
            self.rows[row][1] < self.deadline(path)
        )  # fmt: skip

    def _end(self, deadline: int, row: int, timeouts: bool) -> None:
        done = []
        for path, openings in sorted(self.openings.items()):
            if self.deadline(path) != deadline or path[-1][0] > row or path[0][0] in self.gone:
                continue
            waiting = [opening for opening in openings if self.waits(path, opening, row)]
            if any(token is None and ending(rules) == "never" for rules, token in waiting):
                done.append(path)
            elif waiting and timeouts and not any(token is None and not ending(rules) for rules, token in openings):
                self.found.append(NaiveMatch(path, deadline, True, deadline - 1))
        self._settle([(path, deadline) for path in done], row, deadline, deadline - 1)

    def _settle(self, done: list[tuple[Path, int | None]], row: int, time: int, known_after: int) -> None:
        self.held += [(path, at) for path, at in done if path[0][0] not in self.gone]
        while self.held:
            path, at = min(self.held)
            if self.after_match.kind != "no skip" and any(
                start < path[0][0] for start in self._live(row, time)
            ):  # fmt: skip
                return
            self.held.remove((path, at))
            self.found.append(NaiveMatch(path, at, False, known_after))
            if self.after_match.kind != "no skip":
                self.gone |= set(range(self._goes_on_at(path)))
                self.held = [(path, at) for path, at in self.held if path[0][0] not in self.gone]

    def _goes_on_at(self, path: Path) -> int:
        """The first row with which a later match may begin."""
        kind = self.after_match.kind
        if kind in ("next", "past last"):
            return path[0][0] + 1 if kind == "next" else path[-1][0] + 1
        rows = [row for row, step in path if step == self.after_match.step] or [path[0][0]]
        return rows[0] if kind == "first" else rows[-1]

    def _live(self, row: int, time: int) -> set[int]:
        """The first rows of the candidates that there are after a row, at a time."""
        return {
            path[0][0]
            for path, openings in self.openings.items()
            if path[-1][0] <= row
            and path[0][0] not in self.gone
            and self.deadline(path) > time
            and any(self.waits(path, opening, row) for opening in openings)
        }


def ending(rules: Sequence[Rule]) -> str:
    """The negation that a word ends with: the strongest since an optional part was left out."""
    kinds: list[str] = []
    for rule in rules:
        kinds = [] if rule.kind == "around" else [*kinds, rule.kind]
    return "never" if "never" in kinds else "not first" if "not first" in kinds else ""
