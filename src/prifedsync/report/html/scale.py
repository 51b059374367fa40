"""The verdict's scale: where μ lies between the thresholds, and whether μ decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..contents import Report
from ..guarantee import Group, Guarantee, Stated
from .markup import Html, Inside, tag
from .parts import Tone, paragraph, sentence

TONES: dict[str, Tone] = {"release": "good", "review": "open", "do not release": "bad"}
SCALE = 4 / 3  # the scale ends at so many times the threshold for a review


@dataclass(frozen=True)
class Pin:
    """A μ on the scale. `decides`: it is the one that is compared with the thresholds."""

    whose: str
    mu: Stated
    decides: bool

    @property
    def text(self) -> str:
        return f"{self.whose}: μ ≤ {self.mu.text}"


@dataclass(frozen=True)
class Thresholds:
    """Up to which μ a model may be released, and up to which it may be reviewed."""

    release: float
    review: float

    @property
    def end(self) -> float:
        return self.review * SCALE

    def zone(self, mu: float) -> str:
        """What μ alone would allow."""
        if mu <= self.release:
            return "release"
        return "review" if mu <= self.review else "do not release"

    def passed(self, mu: float) -> bool:
        """Whether μ is above the threshold that is nearest to it."""
        return mu > min((self.release, self.review), key=lambda each: abs(mu - each))

    def parts(self) -> Iterable[tuple[str, float]]:
        """Each zone, and its part of the scale."""
        yield "release", self.release / self.end
        yield "review", (self.review - self.release) / self.end
        yield "do not release", (self.end - self.review) / self.end


def scale(report: Report) -> Inside:
    """Where μ lies between the thresholds, and what that alone would allow."""
    found = report.guarantee
    thresholds = _thresholds(report)
    if found is None or found.known["mu"].upper is None or thresholds.end <= 0:
        return None
    person = person_of(report, found)
    pins = list(_pins(found, person))
    words = _beside(report, thresholds, pins, person)
    alt = " ".join([*(sentence(pin.text) for pin in pins), _ends(thresholds), *_beyond(thresholds, pins)])
    bar = [
        tag("span", tag("span", zone), class_=f"part {TONES[zone]}", style=f"width:{100 * share:.2f}%")
        for zone, share in thresholds.parts()
    ]
    drawn = tag(
        "div", tag("div", bar, class_="bar"), [_pin(thresholds, pin) for pin in pins],
        class_="scale two" if len(pins) > 1 else "scale", role="img", aria_label=alt,
    )  # fmt: skip
    return [drawn, paragraph(words, "beside")]


def _thresholds(report: Report) -> Thresholds:
    release = float(report.words["release_mu"])
    return Thresholds(release, max(release, float(report.words["review_mu"])))


def person_of(report: Report, found: Guarantee) -> Group | None:
    """What protects a person, where the owner says that a person may have several records."""
    several = report.words["records_of_person"]
    return next((group for group in found.groups if group.records == several), None)


def _pins(found: Guarantee, person: Group | None) -> Iterable[Pin]:
    """The larger μ decides: a person with several records is protected less than one record is."""
    known = person is not None and person.mu is not None and person.mu.upper is not None
    mu = found.known["mu"]
    given = "" if mu.upper == found.mu.upper else " given who took part"
    yield Pin(f"one {found.unit}{given}", mu, decides=person is None)
    if person is not None and person.mu is not None and known:
        yield Pin(f"a person with {person.records:,} records", person.mu, decides=True)


def _pin(thresholds: Thresholds, pin: Pin) -> Html:
    """A line at μ, on its zone's side of a threshold. Its words begin as far to the left as keeps them on the scale."""
    mu = float(pin.mu.upper or 0.0)
    at = min(100.0, 100 * mu / thresholds.end)
    said = pin.text.replace("μ ≤ ", "μ\u00a0≤\u00a0")  # a line does not break within it
    words = tag("span", said, style=f"transform:translateX(-{at:.2f}%)")
    kind = "decides" if pin.decides else "other"
    side = "after" if thresholds.passed(mu) else "before"
    return tag("span", words, class_=f"pin {kind} {side}", style=f"left:{at:.2f}%")


def _ends(thresholds: Thresholds) -> str:
    return f"Release ends at μ = {thresholds.release:g}, review at μ = {thresholds.review:g}."


def _beyond(thresholds: Thresholds, pins: Iterable[Pin]) -> Iterable[str]:
    for pin in pins:
        if (pin.mu.upper or 0.0) > thresholds.end:
            yield f"For {pin.whose}, μ is beyond the end of this scale."


def _beside(report: Report, thresholds: Thresholds, pins: Iterable[Pin], person: Group | None) -> str:
    """The scale must not seem to say anything else than the verdict."""
    decision = report.verdict.decision
    deciding = next((pin for pin in pins if pin.decides), None)
    further = list(_beyond(thresholds, pins))
    if deciding is None and person is not None:
        said = (
            f"For a person with {person.records:,} records no μ is known, only ε ≤ {person.epsilon.text}, so this scale "
            f"does not decide. The verdict is: {decision}."
        )
        return " ".join([*further, said])
    assert deciding is not None
    zone = thresholds.zone(float(deciding.mu.upper or 0.0))
    if zone == decision:
        said = f"The μ of {deciding.whose} is in the zone of the verdict: {decision}."
    else:
        said = f"By the μ of {deciding.whose} alone it would be: {zone}. Another ground makes the verdict: {decision}."
    return " ".join([*further, said])
