"""Which engines stand behind each backend's address: data parallel ranks, each with a cache of its own.

Admission keeps a room a rank. The first rank's room has the backend's name, so that a backend with one engine is
nothing special; the others are called `name#1`, `name#2`… (`#` is in no backend's name). Besides them a backend with
several has a pool, `name#any`, for turns that the backend takes to whichever engine it likes. Written by who reads the
engines' reports, and when a backend goes down. Bounded by backends and by the ranks that one page may show.
"""

from typing import Final

_MARK: Final = "#"
_ANY: Final = "any"


class RankTable:
    """Rooms of backends, and what they stand for. A backend that nothing was said of has one room.

    Attributes:
        is_plain: no backend has ever had more than one.
        has_several: some backend has more than one now.
    """

    def __init__(self) -> None:
        self.is_plain = True
        self.has_several = False
        self._rooms: dict[str, tuple[str, ...]] = {}
        self._places: dict[str, tuple[str, int | None]] = {}
        self._most: dict[str, int] = {}

    def see(self, backend: str, engines: int) -> bool:
        """So many engines can be told apart behind a backend now; says whether that is anything new."""
        before = self.rooms_of(backend)
        if len(before) == engines:
            return False
        for room in self._rooms.pop(backend, ()):
            del self._places[room]
        self._places.pop(_pool(backend), None)
        if engines > 1:
            rooms = self._rooms[backend] = _names(backend, engines)
            self._places.update({room: (backend, rank) for rank, room in enumerate(rooms)})
            self._places[_pool(backend)] = (backend, None)
        self._most[backend] = max(engines, self._most.get(backend, 1))
        self.is_plain, self.has_several = False, bool(self._rooms)
        return True

    def rooms_of(self, backend: str) -> tuple[str, ...]:
        """The rooms of a backend now, by rank."""
        return self._rooms.get(backend) or (backend,)

    def pool_of(self, backend: str) -> str:
        """The room of turns that no rank can be asked for; that of its only engine where it has one."""
        return _pool(backend) if backend in self._rooms else backend

    def current_rooms_of(self, backend: str) -> tuple[str, ...]:
        """The rooms of a backend now, and its pool."""
        rooms = self._rooms.get(backend)
        return (*rooms, _pool(backend)) if rooms else (backend,)

    def all_rooms_of(self, backend: str) -> tuple[str, ...]:
        """Those that it had once too: their turns may still run, and what was counted there stays counted."""
        most = self._most.get(backend, 1)
        return (*_names(backend, most), _pool(backend)) if most > 1 else (backend,)

    def place_of(self, room: str) -> tuple[str, int | None]:
        """The backend and the rank that a room stands for; None for the rank where the backend is to choose."""
        if self.is_plain:
            return room, None
        return self._places.get(room) or (room.partition(_MARK)[0], None)

    def is_current(self, room: str) -> bool:
        """Whether the engine behind a room is still there."""
        return _MARK not in room or room in self._places

    def __repr__(self) -> str:
        return f"<RankTable { ({backend: len(rooms) for backend, rooms in self._rooms.items()}) }>"


def _pool(backend: str) -> str:
    return f"{backend}{_MARK}{_ANY}"


def _names(backend: str, engines: int) -> tuple[str, ...]:
    return backend, *(f"{backend}{_MARK}{rank}" for rank in range(1, engines))
