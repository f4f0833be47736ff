"""Errors: three sentences, fields, and a way through pickle."""

import copy
import logging
import pickle
import traceback

import pytest

from mainstem import errors
from mainstem.errors import FellOff, MainstemError, TopicNotFound, Unavailable, did_you_mean, summary_of


def every_error() -> list[type[MainstemError]]:
    found, todo = [], [MainstemError]
    while todo:
        found.append(todo.pop())
        todo.extend(found[-1].__subclasses__())
    return sorted((e for e in found if e.__module__ == "mainstem"), key=lambda error: error.__name__)


def test_a_traceback_shows_what_is_wrong_the_facts_and_what_to_do():
    error = TopicNotFound('topic "ordres" does not exist', detail="The log has 1 topic: orders.", hint="Create it.")

    assert "".join(traceback.format_exception_only(error)) == (
        'mainstem.TopicNotFound: topic "ordres" does not exist\n'
        "Detail: The log has 1 topic: orders.\n"
        "Hint: Create it.\n"
    )


def test_an_error_without_detail_and_hint_is_one_sentence():
    assert str(MainstemError("it is so")) == "it is so"


def test_detail_and_hint_are_printed_and_logged(capsys, caplog):
    error = TopicNotFound("it is so", detail="Facts.", hint="Do this.")
    print(error)
    assert capsys.readouterr().out == "it is so\nDetail: Facts.\nHint: Do this.\n"
    logging.getLogger("somebody").error("failed: %s", error)
    assert caplog.messages == ["failed: it is so\nDetail: Facts.\nHint: Do this."]
    assert (error.summary, summary_of(error), summary_of(ValueError("no"))) == ("it is so", "it is so", "no")


@pytest.mark.parametrize("error_class", every_error(), ids=lambda error: error.__name__)
def test_a_traceback_shows_each_part_once(error_class):
    shown = "".join(traceback.format_exception(error_class("it is so", detail="Facts.", hint="Do this.")))
    assert [shown.count(part) for part in ("it is so", "Detail: Facts.", "Hint: Do this.")] == [1, 1, 1]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error_class", every_error(), ids=lambda error: error.__name__)
def test_every_error_comes_out_of_pickle_whole(error_class, protocol):
    error = error_class("it is so", detail="Facts.", hint="Do this.", topic="orders", partition=3, written=(0, 2))
    error.add_note("While appending.")

    again = pickle.loads(pickle.dumps(error, protocol))

    assert type(again) is error_class
    assert again.args == ("it is so",)
    assert again.summary == "it is so"
    assert str(again) == str(error) == "it is so\nDetail: Facts.\nHint: Do this."
    assert vars(again) == vars(error)
    assert again.__notes__ == ["While appending."]
    assert (again.topic, again.partition, again.written) == ("orders", 3, (0, 2))


@pytest.mark.parametrize("error_class", every_error(), ids=lambda error: error.__name__)
def test_every_error_can_be_copied(error_class):
    error = error_class("it is so", hint="Do this.", pid=7)

    assert vars(copy.deepcopy(error)) == vars(copy.copy(error)) == vars(error)


def test_the_tree_is_drawn_whole_at_the_head_of_the_module():
    assert [error.__name__ for error in every_error() if error.__name__ not in errors.__doc__] == []


def test_what_can_be_caught_by_python_s_own_names():
    assert issubclass(errors.NotFound, LookupError)
    assert issubclass(errors.Invalid, ValueError)
    assert issubclass(errors.Unavailable, OSError)


def test_only_what_may_be_retried_is_unavailable():
    assert {error.__name__ for error in every_error() if issubclass(error, Unavailable)} == {
        "BrokerUnavailable",
        "DatabaseUnavailable",
        "DiskFull",
        "IncompleteAppend",
        "LockHeld",
        "NotYet",
        "Unavailable",
    }


def test_fields_not_given_have_a_value():
    assert vars(FellOff("gone", first_lost=5)) == {"detail": "", "hint": "", "first_lost": 5}
    assert (FellOff("gone").topic, FellOff("gone").last_lost) == ("", 0)


@pytest.mark.parametrize("field", ["errno", "filename", "args", "add_note", "summary"])
def test_a_field_that_pickle_would_lose_is_refused(field):
    with pytest.raises(TypeError, match=field):
        Unavailable("it is so", **{field: 1})


def test_did_you_mean():
    assert did_you_mean("ordres", ["customers", "orders", "payments"]) == 'Did you mean "orders"?'
    assert did_you_mean("ORDERS", ["customers", "Orders"]) == 'Did you mean "Orders"?'
    assert did_you_mean("zebra", ["customers", "orders"]) == ""
    assert did_you_mean("zebra", []) == ""
