"""The budget as it is spent: a bucket of prompt tokens that the constrained side may prefill (paper section 3)."""

from __future__ import annotations


class TokenBudget:
    """``share`` is b. Every admitted prompt credits b of its tokens; a reservation debits all of one.

    Reserving needs a positive balance, so what is spent never exceeds b of all prompt tokens by more than the largest
    prompt, however many requests run at once. Use beyond a reservation (its length was underestimated) comes on top,
    until later requests have paid for it. ``capacity``: most tokens that unused credit may pile up to.
    """

    def __init__(self, share: float, capacity: float = 10_000.0) -> None:
        self._share = share
        self._capacity = capacity
        self.balance = 0.0
        self.admitted = 0
        self.spent = 0

    def set_share(self, share: float) -> None:
        self._share = share

    @property
    def spent_share(self) -> float:
        """Of all admitted prompt tokens, those prefilled by the constrained side. 0 before the first."""
        return self.spent / self.admitted if self.admitted > 0 else 0.0

    def credit(self, prompt_tokens: int) -> None:
        """A request was admitted; negative to correct an estimate."""
        self.admitted += prompt_tokens
        self.balance = min(self._capacity, self.balance + self._share * prompt_tokens)

    def reserve(self, prompt_tokens: int) -> Reservation | None:
        """None where nothing is left. Every reservation must be settled."""
        if self.balance <= 0:
            return None
        self.balance -= prompt_tokens
        return Reservation(self, prompt_tokens)

    def _settle(self, reserved: int, used: int) -> None:
        self.spent += used
        self.balance = min(self._capacity, self.balance + reserved - used)


class Reservation:
    """Tokens set aside for one request."""

    def __init__(self, budget: TokenBudget, tokens: int) -> None:
        self._budget = budget
        self._tokens: int | None = tokens

    def settle(self, used: int) -> None:
        """``used`` tokens were prefilled, the rest returns. Only the first call counts."""
        if self._tokens is not None:
            tokens, self._tokens = self._tokens, None
            self._budget._settle(tokens, used)
