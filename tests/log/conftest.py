"""What tests of the log share."""

import pytest

from tests.log.queue_office import Office

# Before they are imported: an assertion that fails in a rule shows its values as one in a test file does.
pytest.register_assert_rewrite("tests.log.compared_log", "tests.log.reading_rules", "tests.log.writing_rules")


@pytest.fixture
def office() -> Office:
    """A queue's surroundings, new."""
    return Office()
