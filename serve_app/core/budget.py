"""The budget as it is spent: a bucket of tokens that the constrained side may process (paper section 3)."""

from __future__ import annotations

from typing import Final

#: Requests over which a surplus or a debt is worked off by planning with more or less than the share.
HORIZON: Final = 30.0
#: Requests that the mean prompt remembers.
MEMORY: Final = 200


class TokenBudget:
    """``share`` is b. Every admitted prompt credits b of its tokens; a reservation debits all of one.

    Reserving needs a positive balance and leaves a bounded debt, so what is spent never exceeds b of all prompt tokens
    by more than the largest prompt, nor by more than ``burst`` mean prompts, however many requests run at once. Use
    beyond a reservation (its length was underestimated) comes on top, until later requests have paid for it.
    ``burst`` is also the most that unused credit may pile up to.

    The bucket alone underspends: what it refuses is lost. So policies are fitted to ``planned_share``, which steers
    the balance to one typical reservation.
    """

    def __init__(self, share: float, burst: float = 30.0) -> None:
        self._share = share
        self._burst = burst
        self._prompts = 0
        self._mean = 0.0
        self._mean_square = 0.0
        self.balance = 0.0
        self.admitted = 0
        self.spent = 0

    def set_share(self, share: float) -> None:
        self._share = share

    @property
    def limit(self) -> float:
        """Tokens of credit, and of debt, that the balance keeps within."""
        return self._burst * self._mean

    @property
    def spent_share(self) -> float:
        """Of all admitted prompt tokens, those that the constrained side processed. 0 before the first."""
        return self.spent / self.admitted if self.admitted > 0 else 0.0

    @property
    def planned_share(self) -> float:
        """The b to plan with: above the share while the balance is high, below it while it is low; within [0, 1]."""
        if not self._mean:
            return self._share
        # Tokens of prompts are mostly those of long prompts, so a typical reservation is longer than the mean prompt.
        typical = min(self._mean_square / self._mean, self.limit / 2)
        return min(1.0, max(0.0, self._share + (self.balance - typical) / (HORIZON * self._mean)))

    def admit(self, prompt_tokens: int) -> None:
        """A request came: credit its share."""
        self._prompts += 1
        weight = 1 / min(self._prompts, MEMORY)
        self._mean += weight * (prompt_tokens - self._mean)
        self._mean_square += weight * (prompt_tokens**2 - self._mean_square)
        self.correct(prompt_tokens)

    def correct(self, tokens: int) -> None:
        """The prompts admitted so far had so many more tokens, or fewer, than was said."""
        self.admitted += tokens
        self.balance = min(self.limit, self.balance + self._share * tokens)

    def reserve(self, tokens: int) -> Reservation | None:
        """None where nothing is left, or where it would be far from enough. Every reservation must be settled."""
        if self.balance <= 0 or tokens - self.balance > self.limit:
            return None
        self.balance -= tokens
        return Reservation(self, tokens)

    def unreserved(self) -> Reservation:
        """For a request that got no reservation: what it used all the same (a retry, say) is owed by later ones."""
        return Reservation(self, 0)

    def _settle(self, reserved: int, used: int) -> None:
        self.spent += used
        self.balance = min(self.limit, self.balance + reserved - used)


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
