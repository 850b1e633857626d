"""The register of an authority: every certificate that it issued, and which are revoked.

The server reads the register, or a copy of it, and allows the issues of its clients that are not revoked. A
peer with a copy does so for its neighbours. Clients and peers share their names and the count of issues, so
that a common name belongs to one of them.
Issues that the register does not list yet are allowed in advance, so that a renewed certificate works before
the server's copy is renewed: only the authority can sign them. After the last issue of a name is revoked,
only a later issue in the register admits this name again.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from fedlap.deploy.certificates import CertificateFacts, describe_expiry, format_common_name
from fedlap.deploy.private_files import write_private_file
from fedlap.errors import InputError, unknown_name_error
from fedlap.storage.files import describe_error, parse_json, read_file

REGISTER_NAME = "register.json"
REGISTER_VERSION = 1
ISSUES_AHEAD = 3  # issues of a name that are allowed before the register lists them
# Issues of a name that are allowed without a register: more than a year of daily renewals.
ISSUES_WITHOUT_REGISTER = 400


@dataclass(frozen=True)
class Issue:
    """A certificate that the authority issued. Times are in UTC, in ISO 8601."""

    role: str
    name: str
    issue: int
    serial: str
    fingerprint: str
    not_before: str
    not_after: str
    revoked: str | None = None

    @staticmethod
    def of(facts: CertificateFacts) -> "Issue":
        """Return the entry of a new certificate."""
        return Issue(
            role=facts.role,
            name=facts.name,
            issue=facts.issue,
            serial=facts.serial,
            fingerprint=facts.fingerprint,
            not_before=facts.not_before.isoformat(),
            not_after=facts.not_after.isoformat(),
        )

    def check(self) -> None:
        """Raise ValueError if a field has another type than the register's."""
        texts = (self.role, self.name, self.serial, self.fingerprint, self.revoked or "")
        if not all(isinstance(text, str) for text in texts) or type(self.issue) is not int:
            raise ValueError(f"a field of {self.name!r} has a wrong type")
        if self.start.tzinfo is None or self.end.tzinfo is None:
            raise ValueError(f"a time of {self.name!r} has no time zone")

    @property
    def start(self) -> datetime:
        """The first moment of validity."""
        return datetime.fromisoformat(self.not_before)

    @property
    def end(self) -> datetime:
        """The last moment of validity."""
        return datetime.fromisoformat(self.not_after)

    def describe_expiry(self, now: datetime) -> str | None:
        """Return when the certificate expires, or has expired, if that is less than 30 days ahead."""
        return describe_expiry(self.start, self.end, now)

    def describe_state(self, now: datetime) -> str:
        """Return whether the certificate is revoked, invalid, about to expire or valid."""
        return "revoked" if self.revoked is not None else self.describe_expiry(now) or "valid"


@dataclass(frozen=True)
class Register:
    """Certificates that an authority issued, oldest first."""

    issues: tuple[Issue, ...] = ()

    @staticmethod
    def load(path: Path) -> "Register":
        """Read a register; raise InputError if it cannot be read or is not valid."""
        try:
            facts = parse_json(read_file(path))
            if facts["version"] != REGISTER_VERSION:
                raise ValueError(f"its version is {facts['version']!r}, expected {REGISTER_VERSION}")
            register = Register(tuple(Issue(**issue) for issue in facts["issues"]))
            for issue in register.issues:
                issue.check()
            return register
        except OSError as error:
            raise InputError(
                f"register {str(path)!r} cannot be read ({describe_error(error)}); "
                f"copy {REGISTER_NAME} from the authority's folder"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"register {str(path)!r} is not valid ({error}); "
                f"copy {REGISTER_NAME} from the authority's folder"
            ) from error

    def save(self, path: Path) -> None:
        """Write the register, whole or not at all, and wait for the disk."""
        facts = {"version": REGISTER_VERSION, "issues": [asdict(issue) for issue in self.issues]}
        write_private_file(path, json.dumps(facts, indent=2, ensure_ascii=False).encode() + b"\n")

    def next_issue(self, role: str, name: str) -> int:
        """Return the number of the next certificate of a name."""
        return self._last_issue(role, name) + 1

    def add(self, facts: CertificateFacts) -> "Register":
        """Return a register with one more certificate."""
        return Register((*self.issues, Issue.of(facts)))

    def revoke(self, name: str, issue: int | None = None, now: datetime | None = None) -> "Register":
        """Return a register in which an issue of a client or peer, or all its issues, are revoked."""
        numbers = {entry.issue for entry in self._list_issues(name)}
        if not numbers:
            names = {entry.name for entry in self.issues if entry.role != "server"}
            raise unknown_name_error("client", name, names, field="name")
        if issue is not None and issue not in numbers:
            known = ", ".join(str(number) for number in sorted(numbers))
            raise InputError(f"issue = {issue} of {name!r} is unknown; choose from {known}", field="issue")
        time = (now or datetime.now(UTC)).isoformat(timespec="seconds")
        return Register(
            tuple(
                replace(entry, revoked=entry.revoked or time)
                if entry.role != "server" and entry.name == name and issue in (None, entry.issue)
                else entry
                for entry in self.issues
            )
        )

    def allowed_common_names(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the common names of certificates that are allowed, by client or peer."""
        return {name: self._allowed_common_names(name) for name in names}

    def issued_common_names(self, name: str) -> set[str]:
        """Return the common names of all certificates that a client or peer has had."""
        return {format_common_name(name, entry.issue) for entry in self._list_issues(name)}

    def _allowed_common_names(self, name: str) -> list[str]:
        revoked = {entry.issue for entry in self._list_issues(name) if entry.revoked is not None}
        last = self._last_issue("client", name)
        end = last if last in revoked else last + ISSUES_AHEAD
        return [format_common_name(name, issue) for issue in range(1, end + 1) if issue not in revoked]

    def _last_issue(self, role: str, name: str) -> int:
        return max((entry.issue for entry in self._list_issues(name, role == "server")), default=0)

    def _list_issues(self, name: str, of_server: bool = False) -> list[Issue]:
        """Return the certificates of a client or peer, or of the server."""
        return [
            entry for entry in self.issues if entry.name == name and (entry.role == "server") == of_server
        ]


def list_common_names(register: Register | None, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the common names of certificates that are allowed, by client or peer.

    Without a register nothing is revoked, and the first 400 issues of every name are allowed.
    """
    if register is not None:
        return register.allowed_common_names(names)
    issues = range(1, ISSUES_WITHOUT_REGISTER + 1)
    return {name: [format_common_name(name, issue) for issue in issues] for name in names}
