"""Every rule worked by hand: one round of two clients with one weight each, in numbers that are exact in binary.

Client 0 has two records whose mean loss is w²/2 and a constant, client 1 has one with (2w − 64)²/2. With γ = 1/2 and 1/8 a
step is w ← w/2 or w ← w/2 + 16. Both have sent 4 before, and the server's weight is 8. K = 2.
    client 0: α = 1/4, λ = 1/2, so a pull takes (w − anchor)/4     client 1: α = 1/2, λ = 1, and it takes (w − anchor)/8
"""

import math
from dataclasses import replace

import pytest
import torch

from prifedsync.local import Optimiser, Schedule, SeededDraws
from prifedsync.rules import (
    APFL,
    Alone,
    Attentive,
    Ditto,
    FedAvg,
    FedProx,
    Interpolate,
    MeanRegularised,
    Mixture,
    Numbers,
    PFedMe,
    Server,
)

from ..engines.settings import answer, ask, jobs_under, noisy_queries, private, run
from .test_fixed_points import ENGINE, Client, jobs_for, linear, records_for

CLIENTS = (
    Client(((1.0,), (1.0,)), (-1.0, 1.0), 1 / 2, 2, 1 / 4, 1 / 2),
    Client(((2.0,),), (64.0,), 1 / 8, 2, 1 / 2, 1.0),
)
GLOBAL = 8.0
# bandwidths: whoever is as far away as others are on average weighs e^(−1/b) = 1/2 or 1/4 of α/(m − 1)
HALF, QUARTER = 1 / math.log(2), 1 / math.log(4)


def engine_of(kind, rule, jobs=None):
    return kind(linear((4.0,)), jobs or jobs_for(rule, CLIENTS), records_for(CLIENTS), rule, SeededDraws(1))


def after(kind, rule, rounds=1):
    """Uploads, the server's weight if it takes their mean, and personal models."""
    engine = engine_of(kind, rule)
    server = Server(torch.tensor([GLOBAL], dtype=torch.float64))
    for round in range(rounds):
        uploads = ask(engine, round, range(2), server.weights)
        if rule.uploads:
            server = rule.merge(server, uploads.rows, 1.0)
    personal = [engine.personal(i).value.item() for i in range(2)]
    return uploads.rows.value.flatten().tolist(), server.weights.item(), personal


ROUNDS = [
    # from 8: 8 → 4 → 2 and 8 → 20 → 26
    (FedAvg(), [2, 26], 14, [2, 26]),
    # from 3/4·4 + 1/4·8 = 5: 5 → 2.5 → 1.25; from 1/2·4 + 1/2·8 = 6: 6 → 19 → 25.5
    (Interpolate(), [1.25, 25.5], 13.375, [1.25, 25.5]),
    # from 8, w/2 − (w − 8)/4: 8 → 4 → 2 + 1 = 3; w/2 + 16 − (w − 8)/8: 8 → 20 → 26 − 1.5 = 24.5
    (FedProx(), [3, 24.5], 13.75, [3, 24.5]),
    # the same from 4: 4 → 2 + 1 = 3 → 1.5 + 1.25 = 2.75; 4 → 18 + 0.5 = 18.5 → 25.25 − 1.3125 = 23.9375
    (MeanRegularised(), [2.75, 23.9375], 13.34375, [2.75, 23.9375]),
    # θ from 8, anchor 8: θ → 4 → 3, as FedProx; anchor 8 − 5/4 = 6.75; θ → 1.5 + 3.75/4 = 2.4375
    #   → 1.21875 + 4.3125/4 = 2.296875; anchor 6.75 − 4.453125/4 = 5.63671875
    # and θ → 20 → 24.5; anchor 8 + 16.5/4 = 12.125; θ → 28.25 − 12.375/8 = 26.703125
    #   → 29.3515625 − 14.578125/8 = 27.529296875; anchor 12.125 + 15.404296875/4 = 15.97607421875
    (PFedMe(inner_steps=2, outer_step=0.25), [5.63671875, 15.97607421875], 10.806396484375, [2.296875, 27.529296875]),
    # γKλ = 1/2 · 2 · 1/2 = 1/2: from 6 → 3 → 1.5; 1/8 · 2 · 1 = 1/4: from 5 → 18.5 → 25.25
    (Mixture(), [1.5, 25.25], 13.375, [1.5, 25.25]),
    # all have sent 4, so u = 4 whatever the server has; w/2 − (w − 4)/4: 4 → 2 → 1.5; 4 → 18 → 25 − 14/8 = 23.25
    (Attentive(), [1.5, 23.25], 12.375, [1.5, 23.25]),
    # as FedAvg; v from 4 is pulled to 8, not to where the server went since: as MeanRegularised
    (Ditto(), [2, 26], 14, [2.75, 23.9375]),
    (Ditto(publish=True), [2, 26], 14, [2.75, 23.9375]),
    # as FedAvg; with a = 3/4, v from 4: v̄ = 3 + 0.5 = 3.5, v = 4 − 3/4·3.5/2 = 2.6875; v̄ = 2.015625 + 0.5 = 2.515625,
    #   v = 2.6875 − 3/4·2.515625/2 = 1.744140625; v̄ = 1.30810546875 + 0.5
    # and v̄ = 3 + 6.5 = 9.5, ∇ = 2·(19 − 64) = −90, v = 4 + 3/4·90/8 = 12.4375; v̄ = 9.328125 + 6.5 = 15.828125,
    #   ∇ = −64.6875, v = 12.4375 + 3/4·64.6875/8 = 18.501953125; v̄ = 13.87646484375 + 6.5
    (APFL(share=0.75, share_rate=0.0), [2, 26], 14, [1.80810546875, 20.37646484375]),
    # a = 3/4 − (4 − 2)·3.5/28 = 1/2 after the first step; v̄ = 1.34375 + 1 = 2.34375, v = 2.6875 − 2.34375/4 = 2.1015625,
    #   a = 1/2 − 0.6875·2.34375/28 = 12.388671875/28; v̄ = 2 + a·0.1015625
    # and a = 3/4 − (4 − 26)·(−90)/28 < 0, cut to 0: v stays 12.4375, (12.4375 − 26)·(−24) > 0 and so does a; v̄ = 26
    (APFL(share=0.75, share_rate=1 / 28), [2, 26], 14, [2 + 12.388671875 / 28 * 0.1015625, 26]),
    (APFL(publish=True, share=0.75, share_rate=1 / 28), [2, 26], 14, [2 + 12.388671875 / 28 * 0.1015625, 26]),
    # from 4: 4 → 2 → 1 and 4 → 18 → 25; nothing is sent
    (Alone(), [], GLOBAL, [1, 25]),
    (Alone(publish=True), [], GLOBAL, [1, 25]),
]


@ENGINE
@pytest.mark.parametrize(("rule", "uploads", "weight", "personal"), ROUNDS, ids=[str(rule) for rule, *_ in ROUNDS])
def test_one_round(kind, rule, uploads, weight, personal):
    assert after(kind, rule) == (uploads, weight, pytest.approx(personal, rel=1e-14))


@ENGINE
def test_the_second_round_of_attention(kind):
    # ξ_01 = 1/4 · 1/2, u_0 = 7/8 · 1.5 + 1/8 · 23.25 = 4.21875 → 2.109375 → 1.0546875 + 2.109375/4 = 1.58203125
    # ξ_10 = 1/2 · 1/2, u_1 = 3/4 · 23.25 + 1/4 · 1.5 = 17.8125 → 24.90625 → 28.453125 − 7.09375/8 = 27.56640625
    uploads, weight, personal = after(kind, Attentive(bandwidth=HALF), rounds=2)
    assert uploads == personal == pytest.approx([1.58203125, 27.56640625], rel=1e-14)
    assert weight == pytest.approx(14.57421875, rel=1e-14)


@ENGINE
def test_who_is_new_attends_and_is_not_attended_to(kind):
    # client 0 sends 1.5 first, then u_0 = 1.5 → 0.75 → 0.375 + 0.75/4 = 0.5625
    # u_1 = 3/4 · 4 + 1/4 · 1.5 = 3.375 → 17.6875 → 24.84375 − 14.3125/8 = 23.0546875
    engine = engine_of(kind, Attentive(bandwidth=HALF))
    for round, chosen in enumerate(([0], [0, 1])):
        uploads = ask(engine, round, chosen, torch.tensor([GLOBAL], dtype=torch.float64))
    assert uploads.rows.value.flatten().tolist() == pytest.approx([0.5625, 23.0546875], rel=1e-14)


@ENGINE
def test_the_second_round_of_what_is_kept(kind):
    # the server sends 14. Ditto: 2.75 → 1.375 + 2.8125 = 4.1875 → 2.09375 + 2.453125 = 4.546875;
    #   23.9375 → 27.96875 − 1.2421875 = 26.7265625 → 29.36328125 − 1.5908203125 = 27.7724609375
    assert after(kind, Ditto(), rounds=2)[2] == [4.546875, 27.7724609375]
    # uploads 14 → 7 → 3.5 and 14 → 23 → 27.5. APFL goes on with its v, a = 3/4, and is anchored at the new uploads:
    #   v̄ = 3/4·1.744140625 + 0.875 = 2.18310546875, v = 1.744140625 − 3/8·2.18310546875 = 0.92547607421875;
    #   v̄ = 1.5691070556640625, v = 0.3370609283447266; v̄ = 1.127795696258545
    #   v̄ = 3/4·18.501953125 + 6.875 = 20.75146484375, ∇ = −44.994140625, v = 22.72015380859375;
    #   v̄ = 23.915115356445312, ∇ = −32.33953857421875, v = 25.751985549926758; v̄ = 26.188989162445068
    apfl = after(kind, APFL(share=0.75, share_rate=0.0), rounds=2)
    assert apfl == ([3.5, 27.5], 15.5, pytest.approx([1.127795696258545, 26.188989162445068], rel=1e-14))


@ENGINE
@pytest.mark.parametrize(
    ("steps", "anchors", "inner"),
    [
        (1, [8, 8], [4, 20]),
        (2, [6.75, 12.125], [3, 24.5]),
        (3, [6.75, 12.125], [2.4375, 26.703125]),
        (4, [5.63671875, 15.97607421875], [2.296875, 27.529296875]),
    ],
)
def test_the_anchor_moves_after_every_other_step_and_not_between(kind, steps, anchors, inner):
    """The steps of pFedMe above, one by one; what is sent is the anchor."""
    rule = PFedMe(inner_steps=2, outer_step=0.25)
    jobs = [replace(job, unnoised_steps=replace(job.unnoised_steps, local_steps=steps)) for job in jobs_for(rule, CLIENTS)]
    engine = engine_of(kind, rule, jobs)
    sent = ask(engine, 0, range(2), torch.tensor([GLOBAL], dtype=torch.float64)).rows.value
    assert sent.flatten().tolist() == anchors
    assert [engine.personal(i).value.item() for i in range(2)] == inner


@pytest.mark.parametrize(
    ("bandwidth", "squared", "mine", "mixing", "weights"),
    [
        # the mean of 1 and 3 is 2: e^(−ln 4·1/2) = 1/2 and e^(−ln 4·3/2) = 1/8, times α/2; 7, to itself, does not count
        (QUARTER, [[7.0, 1.0, 3.0]], [0], [1 / 2], [[27 / 32, 4 / 32, 1 / 32]]),
        # the same seen by the second of three, and by the third, all of whose others are where it is, with α = 1
        (QUARTER, [[1.0, 0.0, 3.0], [0.0, 0.0, 0.0]], [1, 2], [1 / 2, 1], [[4 / 32, 27 / 32, 1 / 32], [1 / 2, 1 / 2, 0]]),
        # twice the bandwidth: e^(−ln 4·1/4) = √(1/2) and e^(−ln 4·3/4) = √(1/8), half of that
        (2 * QUARTER, [[0.0, 1.0, 3.0]], [0], [1], [[1 - 0.75 * 0.5**0.5, 0.5**0.5 / 2, 0.5**0.5 / 4]]),
        # two: how far the other is does not matter
        (HALF, [[0.0, 5.0], [5.0, 0.0]], [0, 1], [1 / 4, 1], [[7 / 8, 1 / 8], [1 / 2, 1 / 2]]),
        (1.0, [[0.0, 1e-9]], [0], [1], [[1 - math.exp(-1), math.exp(-1)]]),
        # who has not sent anything yet is nobody to others, and sees the others as they are
        (QUARTER, [[0.0, 1.0, math.inf, 3.0]], [0], [1 / 2], [[27 / 32, 4 / 32, 0, 1 / 32]]),
        (QUARTER, [[math.inf, 1.0, math.inf, 3.0]], [0], [1 / 2], [[27 / 32, 4 / 32, 0, 1 / 32]]),
        (QUARTER, [[math.inf, math.inf]], [1], [1], [[0, 1]]),
        # who mixes nothing in, and who is alone, keeps its own
        (1.0, [[2.0, 0.0, 1.0]], [1], [0], [[0, 1, 0]]),
        (1.0, [[0.0]], [0], [1], [[1]]),
    ],
)  # fmt: skip
def test_attention(bandwidth, squared, mine, mixing, weights):
    squared = torch.tensor(squared, dtype=torch.float64)
    places = torch.arange(squared.shape[1]) == torch.tensor(mine)[:, None]
    column = torch.tensor(mixing, dtype=torch.float64)[:, None]
    found = Attentive(bandwidth=bandwidth).attention(squared, places, Numbers(column, 0 * column, 0 * column))
    torch.testing.assert_close(found, torch.tensor(weights, dtype=torch.float64), rtol=1e-14, atol=1e-16)


COSTS = [  # of K = 5: gradients for the upload, and noisy ones
    *((rule, 5, 5) for rule in (FedAvg(), Interpolate(), FedProx(), MeanRegularised(), Mixture(), Attentive())),
    (PFedMe(inner_steps=1), 5, 5), (PFedMe(inner_steps=3), 15, 15), (APFL(), 5, 5), (Ditto(), 5, 5),
    (APFL(publish=True), 5, 10), (Ditto(publish=True), 5, 10), (Alone(), 0, 0), (Alone(publish=True), 0, 5),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "sent", "noisy"), COSTS, ids=str)
def test_what_a_round_costs(rule, sent, noisy):
    assert (rule.upload_steps(5), rule.noisy_gradients(5)) == (sent, noisy)
    assert (rule.upload_steps(1), rule.noisy_gradients(1)) == (sent // 5, noisy // 5)


@ENGINE
@pytest.mark.parametrize(("rule", "sent", "noisy"), [row for row in COSTS if row[2]], ids=str)
def test_and_so_many_queries_are_made(kind, rule, sent, noisy):
    jobs = jobs_under(rule, private, 5, (2, 1), batch="full")
    found = run(kind, linear((4.0,)), jobs, records_for(CLIENTS), SeededDraws(1), rule=rule, rounds=1)
    assert noisy_queries(found.engine) == [noisy, noisy]
    assert [answer(found.uploads[0], i).queries for i in range(2) if rule.uploads] == [sent] * (2 if rule.uploads else 0)


def test_how_far_a_round_goes():
    """0.5, scheduled to a quarter after two rounds; a momentum of 0.75 makes a lasting step four times as long."""
    quarter = Schedule(kind="step", every=2, factor=0.25)
    assert Optimiser(learning_rate=0.5, schedule=quarter).pace(1) == 0.5
    assert Optimiser(learning_rate=0.5, schedule=quarter).pace(2) == 0.125
    assert Optimiser(name="momentum", momentum=0.75, learning_rate=0.5, schedule=quarter).pace(2) == 0.5
