"""A recorder that keeps what it is given."""

from proxy.core.requests import FinishedRequest


class FakeRecorder:
    """Keeps every record, in order; fills the port `core.ports.Recorder`."""

    def __init__(self) -> None:
        self.records: list[FinishedRequest] = []

    def record(self, finished: FinishedRequest) -> None:
        """Take one request's final record."""
        self.records.append(finished)

    @property
    def only(self) -> FinishedRequest:
        """The one record there must be."""
        (record,) = self.records
        return record
