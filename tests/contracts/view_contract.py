"""What every view promises, whatever keeps it. A backend passes it whole with one fixture, `open_view`."""

from tests.contracts.view_changes_contract import ViewChangesContract
from tests.contracts.view_existence_contract import ViewExistenceContract
from tests.contracts.view_history_contract import ViewHistoryContract
from tests.contracts.view_page_contract import ViewPageContract
from tests.contracts.view_reading_contract import ViewReadingContract
from tests.contracts.view_versions_contract import ViewVersionsContract
from tests.contracts.view_writing_contract import ViewWritingContract


class ViewContract(
    ViewExistenceContract,
    ViewWritingContract,
    ViewReadingContract,
    ViewPageContract,
    ViewChangesContract,
    ViewHistoryContract,
    ViewVersionsContract,
):
    """A keyed table: written batch by batch, once each, and read by everyone meanwhile."""
