"""Keys that follow their files: a running process notices renewed certificates and changed registers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fedlap.deploy.keys import Keys
from fedlap.deploy.register import Register, list_common_names
from fedlap.errors import InputError

KEY_EVENTS: Final = ("certificate-renewed", "register-changed")  # A remark names the certificates.

Stamps = dict[str, tuple[int, int] | None]


def ignore_event(event: str, **facts: Any) -> None:
    """Log nothing."""


class KeyWatch:
    """The keys of a process, and the common names of certificates that each of its partners may have.

    keys: None without certificates.
    load: reads and checks a folder of keys.
    names: clients of a server, or neighbours of a peer.
    log: called with an event for a renewed certificate, and for a register that admits others than before.
    """

    def __init__(
        self,
        keys: Keys | None,
        load: Callable[[Path], Keys],
        names: Collection[str],
        log: Callable[..., object] = ignore_event,
    ) -> None:
        self.keys, self._load, self._log = keys, load, log
        self._stamps = self._read_stamps()
        self._register = None if keys is None else keys.load_register()
        self._authority = b"" if keys is None else keys.authority.read_bytes()
        self._names: frozenset[str] = frozenset()
        self.rules: dict[str, list[str]] = {}
        self.admit(names)

    def admit(self, names: Collection[str]) -> None:
        """Admit these names alone from now on."""
        self._names = frozenset(names)
        self.rules = {} if self.keys is None else list_common_names(self._register, self._names)

    def refresh(self) -> tuple[list[str], bool]:
        """Read changed files; return what changed, in words, and whether sessions must be opened again.

        The owner calls this about once per second. A register with new issues alone needs no new session
        unless an issue is not covered by the present rules. Files that are not valid change nothing.
        """
        stamps = self._read_stamps()
        if self.keys is None or stamps == self._stamps:
            return [], False
        self._stamps = stamps
        try:
            keys = self._load(self.keys.folder)
            register, authority = keys.load_register(), keys.authority.read_bytes()
        except (InputError, OSError) as error:
            return [f"changed keys are ignored: {error}"], False
        if register is None and self._register is not None:
            return ["the register is missing: changed keys are ignored, and the last register counts"], False
        remarks = []
        # Files are written one after another, and some with the content that they had.
        is_renewed = (keys.facts, authority) != (self.keys.facts, self._authority)
        if is_renewed:
            remarks.append(f"certificate {keys.facts.common_name} is in use")
            self._log("certificate-renewed", issue=keys.facts.issue)
        rules = list_common_names(register, self._names)
        changes = [] if register is None else self._list_changes(rules, register)
        if changes:
            remarks += changes
            self._log("register-changed")
        self._register = register
        if is_renewed:
            self.keys, self._authority = keys, authority
        if remarks:
            self.rules = rules
        return remarks, bool(remarks)

    def _list_changes(self, rules: Mapping[str, Sequence[str]], register: Register) -> list[str]:
        """Return in words which issues of each name are revoked or allowed by new rules."""
        return [
            text
            for name in sorted(self._names)
            for text in _compare(set(self.rules[name]), set(rules[name]), register.issued_common_names(name))
        ]

    def _read_stamps(self) -> Stamps:
        """Return the time of change and the size of every file that `refresh` watches."""
        if self.keys is None:
            return {}
        stamps: Stamps = {}
        for name in ("key", "certificate", "authority", "register"):
            stamps[name] = None
            with suppress(OSError):  # a file that is missing for a moment counts as changed
                facts = getattr(self.keys, name).stat()
                stamps[name] = (facts.st_mtime_ns, facts.st_size)
        return stamps


def _compare(current: set[str], allowed: set[str], issued: set[str]) -> list[str]:
    """Return in words which issues of a name are revoked or allowed now, as far as that is new."""
    changes = (("revoked", (current - allowed) & issued), ("allowed", (allowed & issued) - current))
    texts = [f"{what}: {', '.join(sorted(names))}" for what, names in changes if names]
    return ["; ".join(texts)] if texts else []
