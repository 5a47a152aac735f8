"""The budget as it is spent: a bucket of tokens that the constrained side may process (paper section 3)."""

from __future__ import annotations

import math
from typing import Final

#: Requests over which a surplus is worked off by planning with more than the share, and a debt by planning with less.
#: Debts may take longer: nothing is lost by that, as credit is that piles up too far.
SURPLUS, DEBT = 30.0, 60.0
#: The share below which a surplus takes longer, as it is smaller, and how many times as long at most; a debt by the
#: root of that. One reservation moves a small share far, and a policy that is now lavish and now thrifty buys less.
SMALL, LONGEST = 1 / 3, 10 / 3
#: Part of the share that is planned with in the deepest debt. Hedges against an outage made it, and a policy that plans
#: with nothing does not hedge in the next one. What may be spent, the bucket decides.
LEAST: Final = 0.5
#: Requests that the mean prompt remembers.
MEMORY: Final = 200
#: Typical reservations that unused credit may pile up to, if they are more than a burst: where few prompts have most
#: of the tokens, credit waits for them.
CREDIT: Final = 5.0
#: Debt of a race: mean prompts at first, later this part of all that was ever credited. So the realised share soon
#: stays within 1 % of b, and long prompts are not refused for ever.
FIRST_DEBT: Final = 2.0
PRECISION: Final = 0.005


class TokenBudget:
    """``share`` is b. Every admitted prompt credits b of its tokens; a reservation debits all of one.

    Reserving needs a positive balance and leaves a bounded debt, so what races spend never exceeds b of all prompt
    tokens by more than the largest prompt, nor by more than ``debt``, however many requests run at once. Use beyond a
    reservation (its length was underestimated) comes on top, until later requests have paid for it. Hedges, which are
    seldom needed but then badly, may go ``burst`` mean prompts deeper; that is also how many of them an outage of the
    other side can cause at once. Unused credit piles up to as much, or to ``CREDIT`` typical reservations.

    The bucket alone underspends: what it refuses is lost. So policies are fitted to ``planned_share``, which steers
    the balance to one typical reservation.
    """

    def __init__(self, share: float, burst: float = 15.0) -> None:
        self._share = share
        self._burst = burst
        self._prompts = 0
        self._mean = 0.0
        self._mean_square = 0.0
        self._earned = 0.0
        self.balance = 0.0
        self.admitted = 0
        self.spent = 0

    @property
    def share(self) -> float:
        """b, as configured."""
        return self._share

    def set_share(self, share: float) -> None:
        self._share = share

    @property
    def limit(self) -> float:
        """Tokens of ``burst`` mean prompts; none with a share of none."""
        return self._burst * self._mean if self._share > 0 else 0.0

    @property
    def typical(self) -> float:
        """Tokens of a typical reservation. Tokens are mostly those of long prompts, so it is longer than the mean."""
        return self._mean_square / self._mean if self._mean else 0.0

    @property
    def capacity(self) -> float:
        """Tokens that unused credit may pile up to."""
        return max(self.limit, CREDIT * self.typical)

    @property
    def debt(self) -> float:
        """Tokens that a race may leave owing."""
        return min(self.limit, max(FIRST_DEBT * self._mean, PRECISION * self._earned))

    @property
    def spent_share(self) -> float:
        """Of all admitted prompt tokens, those that the constrained side processed. 0 before the first."""
        return self.spent / self.admitted if self.admitted > 0 else 0.0

    @property
    def planned_share(self) -> float:
        """The b to plan with: above the share while the balance is high, below it while it is low.

        From ``LEAST`` of the share to 1.
        """
        if not self._mean:
            return self._share
        wanted = min(self.typical, self.debt)
        longer = max(1.0, SMALL / max(self._share, SMALL / LONGEST))
        horizon = SURPLUS * longer if self.balance > wanted else DEBT * math.sqrt(longer)
        steered = self._share + (self.balance - wanted) / (horizon * self._mean)
        return min(1.0, max(LEAST * self._share, steered))

    def admit(self, prompt_tokens: int) -> None:
        """A request came: credit its share. What it earns itself is there for it, beyond all that may pile up."""
        self._prompts += 1
        weight = 1 / min(self._prompts, MEMORY)
        self._mean += weight * (prompt_tokens - self._mean)
        self._mean_square += weight * (prompt_tokens**2 - self._mean_square)
        self.balance = min(self.capacity, self.balance)
        self.correct(prompt_tokens)

    def correct(self, tokens: int) -> None:
        """The prompts admitted so far had so many more tokens, or fewer, than was said."""
        self.admitted += tokens
        self._earned += self._share * tokens
        self.balance += self._share * tokens

    def reserve(self, tokens: int, *, hedge: bool = False) -> Reservation | None:
        """None where nothing is left, or where it would be far from enough. Every reservation must be settled."""
        deeper = self.limit if hedge else 0.0
        if self.balance <= -deeper or tokens - self.balance > self.debt + deeper:
            return None
        self.balance -= tokens
        return Reservation(self, tokens)

    def unreserved(self) -> Reservation:
        """For a request that got no reservation: what it used all the same (a retry, say) is owed by later ones.

        But only down to where a hedge could have left the balance: an outage of the other side must not keep the
        constrained one from racing for long after it.
        """
        return Reservation(self, 0)

    def _settle(self, reserved: int, used: int) -> None:
        self.spent += used
        lowest = min(self.balance, -(self.debt + self.limit))
        self.balance += reserved - used
        if not reserved:
            self.balance = max(lowest, self.balance)


class Reservation:
    """Tokens set aside for one request."""

    def __init__(self, budget: TokenBudget, tokens: int) -> None:
        self._budget = budget
        self._tokens: int | None = tokens

    def settle(self, used: int) -> None:
        """``used`` tokens were processed, the rest returns. Only the first call counts."""
        if self._tokens is not None:
            tokens, self._tokens = self._tokens, None
            self._budget._settle(tokens, used)
