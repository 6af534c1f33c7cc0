"""The catalog once through, then the best again in full."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from foretrain.analysis.goodput import cloud_of
from foretrain.recommendation.answer import Infeasible, Recommendation
from foretrain.recommendation.capacity import enough_devices
from foretrain.recommendation.choosing import choice, folded, front, ranked
from foretrain.recommendation.critical import batch_notes
from foretrain.recommendation.evaluate import Look, Miss, nearest
from foretrain.recommendation.job import Job
from foretrain.recommendation.offers import Candidate, Offer, Terms
from foretrain.recommendation.prices import Tariff
from foretrain.recommendation.reasons import days, unfit, why


class Round:
    """The catalog once through, then the best again in full."""

    def __init__(
        self,
        job: Job,
        terms: Terms,
        look: Look,
        assumed: tuple[str, ...],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.job, self.terms, self.look, self.progress = job, terms, look, progress
        self.assumed = assumed
        self.offers: dict[str, Offer] = {}
        self.misses: dict[str, list[Miss]] = {}
        self.unpriced: dict[str, str] = {}
        self.looked_at = 0

    def run(self, market: Mapping[str, tuple[Any, Tariff]], simulated: int) -> Recommendation:
        total = len(market) + simulated
        for number, (name, (node, tariff)) in enumerate(market.items()):
            self._instance(name, node, tariff)
            self._tell(number + 1, total)
        self._simulate(simulated, len(market))
        return self._result(market)

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(min(done, total), total)

    def _instance(self, name: str, node: Any, tariff: Tariff) -> None:
        usd = tariff.usd(self.terms.buying, self.terms.discount)
        if usd is None:
            self.unpriced[name] = (
                f"no {self.terms.buying} price is known; specify one in your own price file."
            )
            return
        counts = list(self.terms.counts(name, node, tariff))
        self.misses[name] = []
        for count in counts:
            candidate = Candidate(
                name, node, count, usd * count, tariff.date, self.terms.buying == "spot"
            )
            self._take(candidate, self.look.estimated(candidate))
            self.looked_at += 1
        if not counts:
            most, one = self.terms.most_devices, node.device_count
            self.unpriced[name] = (
                f"one has {one} devices, more than the {most} that a cluster may have (--max-devices)."
                if one > most
                else "the quota allows none (--quota)."
            )

    def _take(self, candidate: Candidate, outcome: Offer | Miss) -> None:
        key = f"{candidate.count} x {candidate.instance}"
        self.offers.pop(key, None)
        if isinstance(outcome, Offer):
            self.offers[key] = outcome
        else:
            self.misses[candidate.instance].append(outcome)

    def _simulate(self, most: int, before: int) -> None:
        """The front and the first few, until all of them are simulated."""
        done = 0
        while done < 2 * most:
            first = ranked(self.offers.values(), self.job)
            wanted = {one.name: one for one in (*front(first), *first[:most])}
            left = [one for one in wanted.values() if not one.is_simulated]
            if not left:
                break
            for one in left:
                self._take(one.candidate, self.look.simulated(one))
                done += 1
                self._tell(before + min(done, most), before + most)
        for name, one in self.offers.items():
            if not one.is_simulated:
                self.offers[name] = self.look.again(one)

    def _result(self, market: Mapping[str, tuple[Any, Tariff]]) -> Recommendation:
        best = {one.name for one in front(self.offers.values())}
        offers = [replace(one, is_best=one.name in best) for one in self.offers.values()]
        offers = [replace(one, why=why(one, offers, self.job)) for one in offers]
        offers = folded(ranked(offers, self.job))
        offered = {one.candidate.instance for one in offers}
        lost = []
        for name in market:
            if name not in offered:
                reason = self.unpriced.get(name) or unfit(self.misses[name], self.job, self.terms)
                lost.append(Infeasible(name, reason))
        every = [miss for misses in self.misses.values() for miss in misses]
        remedy = "" if offers else enough_devices(self.look, every)
        return Recommendation(
            job=self.job,
            offers=tuple(offers),
            infeasible=tuple(lost),
            nearest="" if offers else self._nearest(every),
            notes=self._notes(),
            looked_at=self.looked_at,
            buying=self.terms.buying,
            remedy=remedy,
        )

    def _notes(self) -> tuple[str, ...]:
        sizes = [one.candidate.devices for one in self.offers.values()]
        notes = [*self.job.assumptions, *batch_notes(self.job, sizes), *self.look.stacks.notes()]
        if self.job.deadline is None:
            notes.append(
                f"offers of up to {days(self.look.most_hours)}: no deadline specified (--deadline)"
            )
            notes.append(choice(self.job).note)
        is_spot = self.terms.buying == "spot"
        clouds = dict.fromkeys(cloud_of(one.candidate.node) for one in self.offers.values())
        risk = self.terms.risk.assumptions(is_spot=is_spot, clouds=tuple(clouds))
        return (*notes, *self.assumed, *risk)

    def _nearest(self, misses: Sequence[Miss]) -> str:
        """What comes closest, and where memory is what lacks, how many machines would do."""
        miss = nearest(misses, self.job) or self._least_slow(misses)
        if miss is None:
            return ""
        text = f"{miss.candidate.count} x {miss.candidate.instance}: " + unfit(
            [miss], self.job, self.terms
        )
        return text + (self._larger(miss) if miss.kind == "memory" else "")

    def _least_slow(self, misses: Sequence[Miss]) -> Miss | None:
        """Where nothing was worth a look: the fastest by its data sheet, looked at after all."""
        slow = [miss for miss in misses if miss.kind == "slow"]
        if not slow:
            return None
        return self.look.anyway(min(slow, key=lambda m: m.least_hours).candidate)

    def _larger(self, miss: Miss) -> str:
        """The first larger number of machines on which a plan fits."""
        one = miss.candidate
        if one.node.nics is None:
            return ""
        count = one.count * 2
        while count * one.node.device_count <= 4 * self.terms.most_devices:
            rent = one.usd_per_hour / one.count * count
            outcome = self.look.estimated(replace(one, count=count, usd_per_hour=rent))
            what = outcome if isinstance(outcome, Offer) else outcome.offer
            if what is not None:
                return f" On {count} x {one.instance} '{what.plan}' would fit."
            count *= 2
        return ""
