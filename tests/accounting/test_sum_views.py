"""What a coalition can learn from a sum (docs/maths.md, 20 to 24): closed forms against plain linear algebra.

Nothing of the accounting is used here but the profile of a Gaussian. Each closed form stands beside wrong ones that look as
plausible, and the algebra must tell them apart.
"""

import math
from functools import cache
from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy import stats

from prifedsync.fdp import gaussian, participating

DELTA = 2.0  # how far one record moves its client's sum
LARGE = 3e3  # shared terms this large hide everything but the sum

# ------------------------------------------------------------------ the closed forms


def gain(spreads, victim, least, colluders):
    """By what factor the noise of a client grows in the sum: its own, and the least that is left of the others'."""
    honest = least - colluders
    others = sorted(spread for place, spread in enumerate(spreads) if place != victim)
    return math.sqrt(spreads[victim] ** 2 + sum(spread**2 for spread in others[: honest - 1])) / spreads[victim]


WRONG_GAINS = {
    "h in place of its root": lambda s, j, L, t: L - t,
    "colluders are not subtracted": lambda s, j, L, t: gain(s, j, L, 0),
    "the victim does not count": lambda s, j, L, t: gain(s, j, L - 1, t),
    "there is one client more": lambda s, j, L, t: gain([*s, max(s)], j, L + 1, t),
    "the noisiest are left": lambda s, j, L, t: gain([-each if k != j else each for k, each in enumerate(s)], j, L, t),
    "everybody has the victim's noise": lambda s, j, L, t: math.sqrt(L - t),
    "standard deviations are added": lambda s, j, L, t: (s[j] + sum(sorted(s[:j] + s[j + 1 :])[: L - t - 1])) / s[j],
    "variances are taken for standard deviations": lambda s, j, L, t: gain([each**2 for each in s], j, L, t),
}


# ------------------------------------------------------------------ linear algebra


def mu_of(shift, covariance):
    """μ of N(0, Σ) against N(v, Σ): the root of vᵀΣ⁻¹v."""
    return math.sqrt(shift @ np.linalg.solve(covariance, shift))


def seen(spreads, members, colluders, pair):
    """Σ of what is left of the messages when the coalition has subtracted all it knows.

    Every two members share a Gaussian of standard deviation `pair` that cancels in the sum. Those that a colluder shares
    are known to it, and so is its own noise."""
    honest = [member for member in members if member not in colluders]
    covariance = np.diag([spreads[member] ** 2 for member in honest])
    for one, other in combinations(range(len(honest)), 2):
        signs = np.zeros(len(honest))
        signs[[one, other]] = 1, -1
        covariance += pair**2 * np.outer(signs, signs)
    return honest, covariance


def worst_mu(spreads, victim, least, colluders, pair):
    """The largest μ over all lists that the client accepts, and all coalitions."""
    others = [place for place in range(len(spreads)) if place != victim]
    found = 0.0
    for size in range(least - 1, len(others) + 1):
        for partners in combinations(others, size):
            for coalition in combinations(partners, min(colluders, size)):
                honest, covariance = seen(spreads, [victim, *partners], coalition, pair)
                found = max(found, mu_of(DELTA * np.eye(len(honest))[honest.index(victim)], covariance))
    return found


ALIKE = ([3.0] * 5, 0)
UNLIKE = ([3.0, 1.0, 2.0, 5.0, 4.0], 0)
FACTORS = ([1.0, 0.3, 2.5, 0.9, 0.2], 2)  # weights and rates differ: c_k·scale_k
CASES = [(*case, least, t) for case in (ALIKE, UNLIKE, FACTORS) for least in (3, 5) for t in range(least)]


@pytest.mark.parametrize(("spreads", "victim", "least", "colluders"), CASES)
def test_masks_leave_the_sum(spreads, victim, least, colluders):
    """As the shared terms grow, what the coalition sees tends to what the sum says; t = 0 … m − 1."""
    claimed = DELTA / (spreads[victim] * gain(spreads, victim, least, colluders))
    grown = [worst_mu(spreads, victim, least, colluders, pair) for pair in (0.0, 1.0, 1e2, LARGE)]
    assert grown[0] == pytest.approx(DELTA / spreads[victim])  # without shared terms each message is seen by itself
    assert grown == sorted(grown, reverse=True)
    assert all(mu > claimed * (1 - 1e-7) for mu in grown)  # Gaussian pair terms of a finite size give less than masks
    assert grown[-1] == pytest.approx(claimed, rel=1e-4)


@pytest.mark.parametrize("name", WRONG_GAINS)
def test_other_gains_are_rejected(name):
    wrong = 0
    for spreads, victim, least, t in CASES:
        truth = worst_mu(spreads, victim, least, t, LARGE)
        claimed = DELTA / (spreads[victim] * WRONG_GAINS[name](spreads, victim, least, t))
        wrong += claimed != pytest.approx(truth, rel=1e-3)
    assert wrong >= 5


def test_equal_weights_of_unequal_clients_lose_most_of_the_gain():
    """Noise of the same scale at each client weighs 1/records in a mean that weighs clients alike."""
    records = [20 * 50 ** (place / 9) for place in range(10)]
    assert gain([1 / each for each in records], 0, 10, 0) == pytest.approx(1.31, abs=0.005)
    assert gain([1.0] * 10, 0, 10, 0) == pytest.approx(3.16, abs=0.005)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("honest", [2, 3, 7])
def test_gaussian_pair_terms_by_their_closed_form(honest, ratio):
    """σ_eff² = σ²(1 + hρ²)/(1 + ρ²): below the masks' hσ² for every ρ."""
    sigma = 1.7
    _, covariance = seen([sigma] * honest, range(honest), (), ratio * sigma)
    effective = sigma**2 * (1 + honest * ratio**2) / (1 + ratio**2)
    assert mu_of(DELTA * np.eye(honest)[0], covariance) == pytest.approx(DELTA / math.sqrt(effective))
    assert effective < honest * sigma**2


# ------------------------------------------------------------------ copies


@pytest.mark.parametrize("holders", [1, 2, 3, 4])
def test_a_record_at_several_clients_moves_the_sum_by_all_of_them(holders):
    """c·μ, not √c·μ: the moves add up, and the noise is that of one sum."""
    clients, sigma = 6, 3.0
    _, covariance = seen([sigma] * clients, range(clients), (), LARGE)
    shift = DELTA * np.array([1.0] * holders + [0.0] * (clients - holders))
    one = DELTA / (sigma * math.sqrt(clients))
    assert mu_of(shift, covariance) == pytest.approx(holders * one, rel=1e-4)
    if holders > 1:
        assert mu_of(shift, covariance) > 1.4 * math.sqrt(holders) * one


def test_lists_that_split_the_holders_tell_less():
    """Σ n_q² ≤ c²·slots for all ways to spread each holder's slots over sums, and = only where they stay together."""
    slots = (0, 1)
    for holders in (2, 3):
        spread = []
        for order in product(permutations(slots), repeat=holders):  # when each holder is in which of its slots
            for lists in product((0, 1), repeat=holders):  # and which of two lists it was told
                counts = {}
                for holder in range(holders):
                    for slot in slots:
                        sum_of = (order[holder][slot], lists[holder])
                        counts[sum_of] = counts.get(sum_of, 0) + 1
                spread.append(sum(count**2 for count in counts.values()))
        assert max(spread) == holders**2 * len(slots)
        assert min(spread) < max(spread)


def profile(f, epsilon):
    return f.delta(epsilon).upper


def test_the_coins_of_several_holders_are_not_one_coin():
    """Two holders, each present with chance ½: the mixture over how many are there exceeds ½·G_{2μ} and not ¾·G_{2μ}."""
    mu, chance, copies = 4.0, 0.5, 2
    among = [math.comb(copies, n) * chance**n * (1 - chance) ** (copies - n) for n in range(copies + 1)]
    exceeded = False
    for epsilon in (0.0, 0.5, 2.0, 8.0):
        truth = sum(p * profile(gaussian(n * mu), epsilon) for n, p in enumerate(among) if n)
        exceeded |= truth > 1.1 * profile(participating(gaussian(copies * mu), chance), epsilon)
        assert truth <= profile(participating(gaussian(copies * mu), 1 - (1 - chance) ** copies), epsilon)
    assert exceeded


# ------------------------------------------------------------------ masks in whole numbers, by conditioning

MODULUS = 3
NOISE = np.array([0.6, 0.3, 0.1])  # a law of one client's noise
PAIRS = ((0, 1), (0, 2), (1, 2))


def masked(values, lists, senders):
    """The exact law of the messages of three honest clients: {messages: probability}.

    A pair's stream is another one for each list, so two clients with different lists share nothing."""
    streams = sorted({(pair, told) for pair in PAIRS for client in pair if client in senders for told in [lists[client]]})
    law = {}
    uniform = 1 / MODULUS ** len(streams)
    for noises in product(range(MODULUS), repeat=len(senders)):
        chance = math.prod(NOISE[noise] for noise in noises) * uniform
        for drawn in product(range(MODULUS), repeat=len(streams)):
            stream = dict(zip(streams, drawn, strict=True))
            sent = []
            for client, noise in zip(senders, noises, strict=True):
                mine = [(pair, 1 if pair[0] == client else -1) for pair in PAIRS if client in pair]
                terms = sum(sign * stream[pair, lists[client]] for pair, sign in mine)
                sent.append((values[client] + noise + terms) % MODULUS)
            law[tuple(sent)] = law.get(tuple(sent), 0.0) + chance
    return law


def distance(one, other):
    return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in {*one, *other}) / 2


def sum_distance(clients, moved):
    """Total variation of the sum of the noises of so many clients when it moves."""
    law = np.array([1.0, *[0.0] * (MODULUS - 1)])
    for _ in range(clients):
        law = sum(law[k] * np.roll(NOISE, k) for k in range(MODULUS))
    return abs(law - np.roll(law, moved)).sum() / 2


def test_messages_of_one_list_tell_their_sum_and_nothing_else():
    plain = masked((0, 0, 0), ("A", "A", "A"), (0, 1, 2))
    other = masked((2, 0, 0), ("A", "A", "A"), (0, 1, 2))
    assert distance(plain, other) == pytest.approx(sum_distance(3, 2))
    assert distance(plain, other) < sum_distance(1, 2) / 3  # one client's own noise
    same_sum = masked((2, 2, 2), ("A", "A", "A"), (0, 1, 2))
    assert distance(plain, same_sum) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("lists", [("A", "A", "B"), ("A", "B", "C")])
def test_messages_of_different_lists_tell_nothing(lists):
    plain, other = (masked(values, lists, (0, 1, 2)) for values in ((0, 0, 0), (2, 0, 0)))
    assert distance(plain, other) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("senders", [(0, 1), (0, 2), (0,)])
def test_messages_without_those_of_a_partner_tell_nothing(senders):
    plain, other = (masked(values, ("A", "A", "A"), senders) for values in ((0, 0, 0), (2, 0, 0)))
    assert distance(plain, other) == pytest.approx(0, abs=1e-12)


# ------------------------------------------------------------------ rounding

REACH = 80  # grid steps on both sides; the laws below are in it to the last bit


def rounded(centre, spread):
    """The law of round(N(centre, spread²)) on −REACH … REACH."""
    edges = np.arange(-REACH, REACH + 2) - 0.5
    return np.diff(stats.norm.cdf(edges, centre, spread))


def summed(centres, spreads):
    """The law of Σ round(N(a_k, s_k²))."""
    laws = [rounded(centre, spread) for centre, spread in zip(centres, spreads, strict=True)]
    total = laws[0]
    for law in laws[1:]:
        total = np.convolve(total, law)[REACH:-REACH]
    return total


def dithered(centres, spreads):
    """The law of round(N(Σ a_k, Σ s_k²) + U_2 + … + U_h), U uniform on (−½, ½): one Gaussian, rounded at random.

    By quadrature over the sum of the uniforms, a spline of h − 1 boxes."""
    cells = 400
    box = np.ones(cells) / cells
    law = np.ones(1)
    for _ in spreads[1:]:
        law = np.convolve(law, box)
    offsets = (np.arange(len(law)) - (len(law) - 1) / 2) / cells
    total = math.sqrt(sum(spread**2 for spread in spreads))
    return sum(chance * rounded(sum(centres) + offset, total) for offset, chance in zip(offsets, law, strict=True))


def rounding_bound(spreads):
    """Section 21: E·[1.5·(h + 1)·(h + 1 + 2π·s·S) + 2], E = e^(−π²s²/2), s the least s_k and S² the sum of squares."""
    h, least, total = len(spreads), min(spreads), math.sqrt(sum(spread**2 for spread in spreads))
    return math.exp(-(math.pi**2) * least**2 / 2) * (1.5 * (h + 1) * (h + 1 + 2 * math.pi * least * total) + 2)


@cache
def rounding_distance(spreads, centres):
    return abs(summed(centres, spreads) - dithered(centres, spreads)).sum() / 2


@pytest.mark.parametrize("spreads", [(0.7, 0.7), (0.9, 0.9, 0.9), (1.0, 1.5), (1.0, 2.0, 3.0), (1.2,) * 4, (1.6,) * 3])
def test_a_sum_of_roundings_is_a_rounding_of_the_sum(spreads):
    centres = (0.45, -0.3, 0.2, 0.05)[: len(spreads)]
    found = rounding_distance(spreads, centres)
    assert found <= rounding_bound(spreads) + 1e-6  # the quadrature is off by that much
    plain = abs(summed(centres, spreads) - rounded(sum(centres), math.sqrt(sum(s**2 for s in spreads)))).sum() / 2
    assert plain > 5 * found  # rounding the one Gaussian without the other clients' rounding errors is another law


def test_the_distance_falls_as_the_grid_gets_finer():
    """With h = 2 like e^(−π²s²), which is below the bound's e^(−π²s²/2)."""
    centres = (0.45, -0.3)
    coarse, fine = (rounding_distance((spread, spread), centres) for spread in (0.4, 0.6))
    fell = math.log(coarse / fine) / (0.6**2 - 0.4**2)
    assert math.pi**2 / 2 < fell
    assert fell == pytest.approx(math.pi**2, rel=0.15)


def test_what_rounding_leaves_is_below_any_delta():
    """1,000 clients, 10⁷ coordinates, 10⁴ slots, eight grid steps in a standard deviation; and the worst case."""
    assert rounding_bound([8.0] * 1000) * 1e7 * 1e4 < 2e-119
    h, total = 10**6, 2.0**31
    extreme = math.exp(-(math.pi**2) * 32) * (1.5 * (h + 1) * (h + 1 + 2 * math.pi * 8 * total) + 2)
    assert extreme * 1e11 < 2e-109
    assert extreme * 1e11 * (1 + math.exp(20)) < 1e-100
    fine = -(math.pi**2) * 256**2 / 2 + math.log(1.5 * (h + 1) * (h + 1 + 2 * math.pi * 256 * 2.0**62) + 2)
    assert fine + math.log(1e11) + 1e5 < -100 * math.log(10)  # without masks: for every ε up to 10⁵
    assert rounding_bound([1.0] * 1000) > 1e4  # a grid as coarse as the noise: nothing is shown


def test_a_coarse_grid_loses_the_gain():
    """Values rounded one by one to a grid of ten standard deviations: the others' noise does not pass the rounding."""
    h, spread, move = 9, 0.1, 0.1
    centres = [(0.45 + moved, *[0.0] * (h - 1)) for moved in (0.0, move)]
    one, other = (summed(each, [spread] * h) for each in centres)
    advantage = abs(one - other).sum() / 2
    claimed = move / (spread * math.sqrt(h))
    measured = 2 * stats.norm.ppf((1 + advantage) / 2)
    assert claimed == pytest.approx(1 / 3)
    assert measured == pytest.approx(1.0, abs=0.01)  # as if each value were seen by itself


# ------------------------------------------------------------------ two targets


def noise_for_two(everybody, coalition, honest, slots):
    """The noise of each of some clients that are alike, as a standard deviation."""
    return DELTA * math.sqrt(slots) * max(1 / (coalition * math.sqrt(honest)), 1 / everybody)


@pytest.mark.parametrize("honest", [1, 4, 50])
@pytest.mark.parametrize(("everybody", "coalition"), [(1.0, 0.05), (1.0, 0.5), (0.3, 0.3)])
def test_the_noise_for_two_targets_meets_both_and_is_the_least(everybody, coalition, honest):
    slots = 33
    noise = noise_for_two(everybody, coalition, honest, slots)
    reached = DELTA * math.sqrt(slots) / noise, DELTA * math.sqrt(slots) / (noise * math.sqrt(honest))
    assert reached[0] <= everybody * (1 + 1e-12)
    assert reached[1] <= coalition * (1 + 1e-12)
    assert reached[0] == pytest.approx(everybody) or reached[1] == pytest.approx(coalition)


def test_a_floor_of_noise_and_what_is_missing_meet_what_every_client_needs():
    """s_j² = max(T, a_j² − (h−1)·T) for any T, raised where a client needs more by itself; 0.1 % less is not enough."""
    draw = np.random.default_rng(0)
    for _ in range(200):
        clients = int(draw.integers(2, 9))
        least = int(draw.integers(1, clients + 1))
        colluders = int(draw.integers(0, least))
        needed = draw.uniform(0.1, 5, clients)  # a_j, against the coalition
        alone = draw.uniform(0.0, 3, clients)  # c_j·noise that the client needs against everybody
        floor = draw.uniform(0.001, max(needed) ** 2)
        shared = [math.sqrt(max(floor, need**2 - (least - colluders - 1) * floor)) for need in needed]
        spreads = [max(pair) for pair in zip(shared, alone, strict=True)]
        effective = [spreads[j] * gain(spreads, j, least, colluders) for j in range(clients)]
        assert all(effective[j] >= needed[j] * (1 - 1e-12) for j in range(clients))
        if floor < min(needed) ** 2 / (least - colluders):  # then the others of the neediest client are at the floor
            lower = [spread * 0.999 for spread in (floor**0.5,) * (clients - 1)]
            lower.append(0.999 * math.sqrt(max(needed) ** 2 - (least - colluders - 1) * floor))
            assert lower[-1] * gain(lower, clients - 1, least, colluders) < max(needed)


def test_each_by_its_own_need_is_not_enough():
    """Two clients that need 1 and 5: the noise of the first helps the second too little."""
    own = [need / math.sqrt(2) for need in (1.0, 5.0)]
    assert own[1] * gain(own, 1, 2, 0) < 0.75 * 5


def test_spare_attempts_cost_what_rounds_cost():
    """3 of 30 cost 4.9 % of μ."""
    assert math.sqrt(33 / 30) - 1 == pytest.approx(0.049, abs=5e-4)
