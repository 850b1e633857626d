"""A daily look at a certificate: its process warns while there is time to renew it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from fedlap.deploy.certificates import CertificateFacts
from fedlap.errors import InputError

LOOK_INTERVAL: Final = 86_400.0  # seconds


class ExpiryWatch:
    """Warns at the start and once a day of a certificate that expires within 30 days, or has expired.

    load: reads the certificate, which may have been renewed since. log: called with the event. say: shows the
    warning to the operator.
    """

    def __init__(
        self, load: Callable[[], CertificateFacts], log: Callable[..., object], say: Callable[[str], None]
    ) -> None:
        """Remember the certificate; `look` reads it."""
        self._load, self._log, self._say = load, log, say
        self._next = float("-inf")

    def look(self, now: float) -> None:
        """Look at the certificate if that is due; `now` is the time of a monotonic clock."""
        if now < self._next:
            return
        self._next = now + LOOK_INTERVAL
        try:
            facts = self._load()
        except InputError as error:
            self._say(str(error))
            return
        if (text := facts.describe_expiry()) is not None:
            left = facts.not_after - datetime.now(UTC)
            self._log("certificate-expiring", days=max(0, left.days))
            self._say(f"certificate {facts.common_name} {text}; renew it: fedlap keys request, sign, install")
