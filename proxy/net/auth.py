"""Whether a client may use the proxy. Compares digests in constant time; keys are never kept or logged in the clear."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from proxy.core.errors import Refusal
from proxy.core.outcomes import Outcome


class Gatekeeper:
    """Knows the digests of the keys that open the proxy; with none, everybody may.

    Args:
        keys: the keys themselves; only their SHA-256 digests are kept.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def check(self, headers: Mapping[str, str]) -> None:
        """Let a request pass that carries a valid key in either header: the other may hold a stale one.

        Raises:
            Refusal: 401 when neither does.
        """
        if not self._digests:
            return
        scheme, _, bearer = headers.get("Authorization", "").partition(" ")
        presented = [bearer.strip()] if scheme.lower() == "bearer" else []
        presented.append(headers.get("x-api-key", ""))
        # Every digest is compared, whichever matches: the time taken says nothing about the key.
        matches = [hmac.compare_digest(_digest(key), known) for key in presented for known in self._digests]
        if not any(matches):
            message = "No valid key: send one of this proxy's keys as a bearer token or in x-api-key."
            raise Refusal(Outcome.REFUSED_UNAUTHENTICATED, 401, message)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
