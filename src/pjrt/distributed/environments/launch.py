"""``pjrt launch``, and any other launcher that sets its variables."""

from __future__ import annotations

from pjrt.distributed.environments.environment import Environment, Place

ADDRESS = "PJRT_COORDINATOR_ADDRESS"
COUNT = "PJRT_PROCESS_COUNT"
INDEX = "PJRT_PROCESS_INDEX"


class LaunchEnvironment(Environment):
    """The variables of this package: ``PJRT_COORDINATOR_ADDRESS``, ``PJRT_PROCESS_COUNT`` and ``PJRT_PROCESS_INDEX``.

    Those that are set alone complete the place that another environment gives.
    """

    name = "pjrt launch"

    def is_present(self) -> bool:
        """Whether the number of this process is set."""
        return INDEX in self.variables

    def place(self) -> Place:
        """Return the place of this process."""
        count = self.number(COUNT) if COUNT in self.variables else None
        index = self.number(INDEX) if INDEX in self.variables else None
        return Place(self.variables.get(ADDRESS) or None, count, index)
