"""A turn that has its room: what the gate hands out and takes back."""

from msgspec import Struct

from proxy.state.wait_queue import Waiting


class Placement(Struct, eq=False):
    """A turn that has its room on a backend, until `Gate.end`.

    Attributes:
        admission: `resident`, `new`, `returning` or `control`; `unlimited` where nothing is known of the engine.
        expected_tokens: prompt tokens that we believe cached there.
        prefix: `warm` where we believe the session's own prefix cached, `moved` where that lies on another backend,
            `shared` where only its head is there, which others use, `cold` where nothing is; `unknown` with the size.
        prefill_s: from placing to the first token, when no other prompt was computed meanwhile and none held back.
        would_wait: it passed although it would have had to wait (not enforcing).
    """

    id: int
    backend: str
    waiting: Waiting
    admission: str
    expected_tokens: int
    placed_at: float
    was_alone: bool = False
    would_wait: bool = False
    prefix: str = "unknown"
    uncached_tokens: int = 0
    control_blocks: float = 0.0
    generated_tokens: int = 0
    booked_tokens: int = 0
    has_first_token: bool = False
    prefill_s: float | None = None
