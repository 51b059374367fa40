"""The sum of a round: how much each client's noised vector counts in it, and how many clients it has at least.

Both are public numbers. Client k adds c_k·(its clipped sum or change + its noise) to the sum of a round. With
φ_k = weight_k · learning_rate_k ÷ expected_batch_k, the factor is c_k = φ_k ÷ max φ. Where a whole change is noised once,
φ_k is the weight. So the noise of client k has the standard deviation c_k·noise_scale_k in the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..values import NOT_GIVEN, BadValue, counted, number, whole


def factors(
    weights: Sequence[float], learning_rates: Sequence[float] | None = None, expected_batches: Sequence[float] | None = None
) -> tuple[float, ...]:
    """The public factor c_k of each client in the sum, at most 1; arguments as those of `influences`."""
    shares = influences(weights, learning_rates, expected_batches)
    most = max(shares)
    return tuple(share / most for share in shares)


def influences(
    weights: Sequence[float], learning_rates: Sequence[float] | None = None, expected_batches: Sequence[float] | None = None
) -> tuple[float, ...]:
    """φ_k of each client: what one unit of its vector adds to Σ weight_k·(its change).

    learning_rates, expected_batches: those of noisy gradients; None where a whole change is noised once.
    """
    rates = learning_rates or [1.0] * len(weights)
    batches = expected_batches or [1.0] * len(weights)
    shares = []
    for weight, rate, batch in zip(weights, rates, batches, strict=True):
        number("weight", weight, 0, ends="(]")
        number("learning_rate", rate, 0, ends="(]")
        number("expected_batch", batch, 0, ends="(]")
        shares.append(weight / batch * rate)  # in this order n/n is exactly 1, and clients that count alike have one factor
    return tuple(shares)


def least_clients(
    clients: int, asked: int | None = None, masks: bool = False, attempts: int = 0, participation: float = 1.0,
    lost: float = 0.0,
) -> int:  # fmt: skip
    """The least number of clients in any sum of a run: the number asked for, or what is known without one.

    Each spare attempt may leave one client out of a masked sum. Without masks and with clients that may be absent, a sum
    may have one client alone.
    """
    whole("clients", clients, 1)
    if asked is not None:
        return whole("least_clients", asked, 1, clients, remedy="a sum cannot have more clients than there are")
    if not masks:
        return clients if participation == 1 and lost == 0 else 1
    if participation < 1:
        rule = f"must be given with masks and participation = {participation:g}: nobody knows how few take part in a round"
        raise BadValue("least_clients", NOT_GIVEN, rule, "set privacy.least_clients (--least-clients)")
    return max(1, clients - attempts)


def check_masked(least: int, asked: int | None, attempts: int, table: str = "") -> None:
    """Refuse masks where a sum may have one client alone. asked: the least number, where it was given.

    table: what stands before the names of the fields in a config.
    """
    if least >= 2:
        return
    broken = f"leaves {counted(least, 'client')} in a sum, and a client alone in a list is not masked"
    if asked is not None:
        raise BadValue(f"{table}least_clients", least, broken, "give at least 2")
    raise BadValue(f"{table}attempts", attempts, broken, f"give fewer, or {table}least_clients; masks need two clients")
