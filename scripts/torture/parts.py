"""The parts of the campaign, in the order of its table."""

from __future__ import annotations

from torture.crafted import Crafted
from torture.damage import Damage
from torture.descriptors import Descriptors
from torture.determinism import Determinism
from torture.disk import Disk
from torture.limits import Limits
from torture.memory import Memory
from torture.numbers import Numbers
from torture.signals import Signals
from torture.streams import Streams
from torture.texts import Texts


class SanitizedTexts(Texts):
    name, sanitized, share = "text@sanitized", True, 0.5
    promise = f"Under AddressSanitizer and UndefinedBehaviorSanitizer: {Texts.promise}"


class SanitizedDamage(Damage):
    name, sanitized, share = "damage@sanitized", True, 0.5
    promise = f"Under AddressSanitizer and UndefinedBehaviorSanitizer: {Damage.promise}"


PARTS = {
    part.name: part
    for part in (Texts, SanitizedTexts, Streams, Damage, SanitizedDamage, Crafted, Signals, Disk, Limits, Memory,
                 Determinism, Numbers, Descriptors)
}
